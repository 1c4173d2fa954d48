#include "frame.h"

#include <stdlib.h>
#include <string.h>

void buffer_add(struct buffer *b, const void *data, size_t len)
{
	if (len == 0)
		return;
	if (b->start + b->len + len > b->size) {
		if (b->start) {
			memmove(b->data, b->data + b->start, b->len);
			b->start = 0;
		}
		if (b->len + len > b->size) {
			size_t size = b->size ? b->size : 4096;

			while (size < b->len + len)
				size *= 2;
			b->data = realloc(b->data, size);
			if (!b->data)
				abort(); /* out of memory: an agent cannot go on */
			b->size = size;
		}
	}
	memcpy(b->data + b->start + b->len, data, len);
	b->len += len;
}

void buffer_drop(struct buffer *b, size_t len)
{
	b->start += len;
	b->len -= len;
	if (b->len == 0)
		b->start = 0;
}

void buffer_free(struct buffer *b)
{
	free(b->data);
	memset(b, 0, sizeof *b);
}

uint32_t get32(const unsigned char *p)
{
	return (uint32_t)p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24;
}

uint64_t get64(const unsigned char *p)
{
	return get32(p) | (uint64_t)get32(p + 4) << 32;
}

void put32(unsigned char *p, uint32_t v)
{
	for (int i = 0; i < 4; i++)
		p[i] = (unsigned char)(v >> (8 * i));
}

void put64(unsigned char *p, uint64_t v)
{
	put32(p, (uint32_t)v);
	put32(p + 4, (uint32_t)(v >> 32));
}

void frame_add(struct buffer *b, uint8_t type, uint32_t channel, const void *payload,
	       uint32_t len)
{
	unsigned char header[FRAME_HEADER];

	put32(header, len);
	put32(header + 4, channel);
	header[8] = type;
	buffer_add(b, header, sizeof header);
	buffer_add(b, payload, len);
}

int frame_peek(const struct buffer *b, struct frame *f)
{
	const unsigned char *p = buffer_head(b);

	if (b->len < FRAME_HEADER)
		return 0;
	f->len = get32(p);
	if (f->len > FRAME_MAX)
		return -1;
	if (b->len < FRAME_HEADER + (size_t)f->len)
		return 0;
	f->channel = get32(p + 4);
	f->type = p[8];
	f->payload = p + FRAME_HEADER;
	return 1;
}
