/* Frames: what the lab and the agent say to each other over any byte stream.
 *
 * A frame is u32 length of the payload, u32 channel, u8 type, payload; little endian.
 * The agent's side starts with FRAME_MAGIC and a READY frame; what comes before the magic (a
 * serial line prints rubbish while a machine boots) is no part of the conversation.
 *
 * Every stream of a channel has a window: its sender may have that many bytes on the way that
 * the receiver has not yet given CREDIT for. So neither side ever has to stop reading, no buffer
 * grows without bound, and a stream that nobody reads holds up no other.
 */
#ifndef NM_FRAME_H
#define NM_FRAME_H

#include <stddef.h>
#include <stdint.h>

#define FRAME_MAGIC "\002nearmetal\003agent\001"
#define FRAME_MAGIC_LEN 17u
#define FRAME_VERSION 1u
#define FRAME_HEADER 9u
#define FRAME_MAX (256u * 1024) /* longest payload */
#define FRAME_CHUNK (32u * 1024) /* longest piece of a stream that we send */

enum frame_type {
	/* lab to agent */
	FRAME_SPAWN = 'S',  /* u8 kind, u32 argc, u32 envc, then cwd, argv, env, each ended by NUL */
	FRAME_STDIN = 'I',  /* bytes */
	FRAME_CLOSE = 'E',  /* no more standard input */
	FRAME_KILL = 'K',   /* u32 signal */
	/* agent to lab */
	FRAME_READY = 'R',  /* u32 version, u32 window of stdin, u32 window of stdout and stderr */
	FRAME_STARTED = 'P',/* u32 pid, u64 monotonic ns at the start */
	FRAME_STDOUT = '1', /* bytes */
	FRAME_STDERR = '2', /* bytes */
	FRAME_EXIT = 'X',   /* i32 status, i32 signal, i32 errno of the start, u64 ns, u64 KiB */
	/* both */
	FRAME_CREDIT = 'C', /* u8 stream (0, 1, 2), u32 bytes consumed */
	FRAME_CLOCK = 'T',  /* u64 token; answer: u64 token, u64 monotonic ns, u64 real time ns */
};

enum spawn_kind {
	SPAWN_EXEC = 0, /* run argv, found on PATH */
	SPAWN_PUT = 1,  /* argv = path, octal mode: standard input becomes that file */
	SPAWN_GET = 2,  /* argv = path: that file becomes standard output */
};

/* A byte queue that grows as needed. */
struct buffer {
	unsigned char *data;
	size_t start, len, size;
};

void buffer_add(struct buffer *b, const void *data, size_t len);
void buffer_drop(struct buffer *b, size_t len); /* from the front */
void buffer_free(struct buffer *b);

static inline unsigned char *buffer_head(const struct buffer *b)
{
	return b->data + b->start;
}

struct frame {
	uint32_t channel;
	uint8_t type;
	uint32_t len;
	const unsigned char *payload; /* points into the buffer it was read from */
};

uint32_t get32(const unsigned char *p);
uint64_t get64(const unsigned char *p);
void put32(unsigned char *p, uint32_t v);
void put64(unsigned char *p, uint64_t v);

/* Append a frame to `b`. */
void frame_add(struct buffer *b, uint8_t type, uint32_t channel, const void *payload,
	       uint32_t len);

/* Look at the first frame in `b`: 1 found, 0 more bytes needed, -1 not a frame (too long).
 * The caller drops FRAME_HEADER + len bytes when done with it. */
int frame_peek(const struct buffer *b, struct frame *f);

#endif
