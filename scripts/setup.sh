#!/bin/bash
# Prepare this machine for nearmetal: Debian packages, a Python environment in .venv, the userland
# and the tools in the cache. Only what is missing is done; a second call takes a second or two.
#
#   scripts/setup.sh            what `nearmetal run` needs
#   scripts/setup.sh --tests    also what the tests need
#   ... --then SECONDS          what comes afterwards takes so long (for the time left)
#
# PYTHON names the interpreter (3.11 or later); NEARMETAL_CACHE the cache.
set -uo pipefail
cd "$(dirname "$0")/.."

# Compilers and libraries of the programs; what builds the userland; what carries environments.
PACKAGES=(
    ca-certificates gcc gfortran libc6-dev libopenblas-pthread-dev make
    debian-archive-keyring e2fsprogs kmod mmdebstrap util-linux
    busybox-static cpio crun iproute2 openssh-client procps qemu-system-x86 user-mode-linux
)
TEST_PACKAGES=(chromium fonts-dejavu-core hyperfine libmpich-dev mpich openssh-server)
APT=(apt-get -q -y -o DPkg::Lock::Timeout=300 -o Dpkg::Use-Pty=0 -o APT::Install-Recommends=false)
export DEBIAN_FRONTEND=noninteractive LC_ALL=C.UTF-8

# What each part takes on two cores the first time, in seconds: for the time left.
declare -A EXPECT=([update]=10 [packages]=100 [mpich]=5 [python]=60 [userland]=70 [tools]=200)

usage() { echo "usage: scripts/setup.sh [--tests] [--then SECONDS]" >&2; exit 2; }

tests=no afterwards=0
while [ $# -gt 0 ]; do
    case $1 in
        --tests) tests=yes; PACKAGES+=("${TEST_PACKAGES[@]}") ;;
        --then) [[ ${2:-} =~ ^[0-9]+$ ]] || usage; afterwards=$2; shift ;;
        *) usage ;;
    esac
    shift
done

# --- what is shown -------------------------------------------------------------------------------

logs=$(mktemp -d) || exit 1
declare -A pids=()
later=$afterwards  # seconds expected after the present part

finish() {
    local name
    for name in "${!pids[@]}"; do kill -- "-${pids[$name]}" 2>/dev/null; done
    rm -rf "$logs"
    allow_services
}
trap finish EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

clear_line() { [ ! -t 1 ] || printf '\r\033[K'; }

say() {
    clear_line
    printf 'setup: [%4d s] %s\n' "$SECONDS" "$*"
}

die() {  # MESSAGE REMEDY
    clear_line >&2
    printf 'setup: %s\n       %s\n' "$1" "$2" >&2
    exit 2
}

minutes() { printf '%d:%02d' $(($1 / 60)) $(($1 % 60)); }

# The last words of a log, without the part's name and its own clock.
last_line() {
    tail -n 1 "$1" 2>/dev/null | tr -d '\r' |
        sed -E 's/^(userland|tools): *(\[[^]]*\] *)?//' | cut -c 1-60
}

# Seconds left of a part that has taken $1 s: what was expected ($2), unless its log counts.
RUNSC_PACKAGES=520
left_of() {  # ELAPSED EXPECTED LAST_LINE
    local left=$(($2 - $1))
    if [[ $3 =~ ([0-9]+)\ packages\ compiled ]] && [ "${BASH_REMATCH[1]}" -ge 120 ]; then
        left=$(($1 * (RUNSC_PACKAGES - BASH_REMATCH[1]) / BASH_REMATCH[1]))
    fi
    echo $((left > 5 ? left : 5))
}

# Wait for all started parts, showing each one's last line: on a terminal one line kept up to date,
# elsewhere a line every 15 s. Returns 1 as soon as a part failed that nearmetal cannot do without.
await() {
    local begun=$SECONDS shown=$SECONDS name text line left pause=0.05
    while [ ${#pids[@]} -gt 0 ]; do
        sleep $pause
        [ "$SECONDS" = "$begun" ] || pause=0.3
        text= left=0
        for name in "${!pids[@]}"; do
            if ! kill -0 "${pids[$name]}" 2>/dev/null; then
                if wait "${pids[$name]}"; then
                    line=$(last_line "$logs/$name")
                    say "$name: ${line:-done}"
                else
                    show_failure "$name"
                    [ "$name" = tools ] || { unset "pids[$name]"; return 1; }
                    say "tools: going on without; what needs them will be reported as not run"
                fi
                unset "pids[$name]"
            else
                line=$(last_line "$logs/$name")
                text+="  $name: $line"
                line=$(left_of $((SECONDS - begun)) "${EXPECT[$name]}" "$line")
                left=$((line > left ? line : left))
            fi
        done
        # What was there already is done at once: nothing to show.
        [ -n "$text" ] && [ $((SECONDS - begun)) -ge 2 ] || continue
        text="about $(minutes $((left + later))) left$text"
        if [ -t 1 ]; then
            text="setup: [$(printf %4d "$SECONDS") s] $text"
            printf '\r\033[K%s' "${text:0:$((${COLUMNS:-$(tput cols 2>/dev/null || echo 80)} - 1))}"
        elif [ $((SECONDS - shown)) -ge 15 ]; then
            shown=$SECONDS
            say "$text"
        fi
    done
    clear_line
}

show_failure() {
    clear_line
    { echo "setup: $1 failed; the end of its output:"; tail -n 12 "$logs/$1" | sed 's/^/    /'; } >&2
}

start() {  # NAME COMMAND...: in the background, in a process group of its own
    local name=$1
    shift
    set -m
    "$@" >"$logs/$name" 2>&1 </dev/null &
    pids[$name]=$!
    set +m
}

# --- Debian packages -----------------------------------------------------------------------------

python_ok() { "$1" -c 'import sys, ensurepip, venv; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; }

choose_python() {
    for python in ${PYTHON:-} python3 /usr/bin/python3 python3.13 python3.12 python3.11; do
        ! python_ok "$python" || return 0
    done
    python=
}

missing_packages() {
    local installed package
    installed=" $(dpkg-query -W -f '${db:Status-Abbrev}${Package} ' 2>/dev/null | sed 's/ii  */ /g') "
    for package in "${PACKAGES[@]}"; do
        [[ $installed == *" $package "* ]] || echo "$package"
    done
    [ -n "$python" ] || echo python3-venv
}

# A server that comes in for the tests must not start to listen: keep services from starting.
POLICY=/usr/sbin/policy-rc.d POLICY_MARK='# written by nearmetal, for the time of its set-up'
forbid_services() {
    [ ! -e $POLICY ] || return 0
    printf '#!/bin/sh\n%s\nexit 101\n' "$POLICY_MARK" >$POLICY && chmod 755 $POLICY
}
allow_services() { ! grep -qsxF "$POLICY_MARK" $POLICY || rm -f $POLICY; }

install_packages() {
    local remedy='Check the network and apt, then run it again; it goes on where it stopped.'
    mapfile -t missing < <(missing_packages)
    [ ${#missing[@]} -gt 0 ] || { say "packages: all there"; return; }
    say "packages: installing ${missing[*]}"
    later=$((EXPECT[packages] + EXPECT[tools] + afterwards))
    start update "${APT[@]}" update
    await || die "apt-get update failed." "$remedy"
    forbid_services
    later=$((EXPECT[tools] + afterwards))
    start packages "${APT[@]}" install "${missing[@]}"
    await || die "apt-get install failed." "$remedy"
    allow_services
    if [[ " ${missing[*]} " == *" openssh-server "* ]] && [ -d /run/systemd/system ]; then
        systemctl disable --quiet ssh.service ssh.socket 2>/dev/null
        say "packages: openssh-server is here for the tests alone; its service stays disabled"
    fi
    choose_python
    later=$afterwards
}

# --- the Python environment ----------------------------------------------------------------------

# requirements-dev.lock holds all that requirements.lock holds; .venv/.nearmetal-ready has a line
# for each of the two that is installed.
lock=requirements.lock
[ "$tests" = no ] || lock=requirements-dev.lock

stamp() { echo "$1 $({ pwd; "$python" -V; cat pyproject.toml "$1"; } | sha256sum)"; }

python_ready() {
    [ -x .venv/bin/nearmetal ] && grep -qxF "$(stamp $lock)" .venv/.nearmetal-ready 2>/dev/null
}

make_venv() {
    [ ! -e .venv/.nearmetal-unfinished ] || rm -rf .venv  # an installation that was killed
    [ -x .venv/bin/python ] || "$python" -m venv .venv || rm -rf .venv
    [ -d .venv ] || die "The Python environment .venv cannot be made." "Is the disk full?"
    touch .venv/.nearmetal-unfinished
}

pip_install() {
    .venv/bin/python -m pip install -q --disable-pip-version-check --no-input --no-deps "$@"
}

# The userland takes its MPI from this package, so it comes before the others.
install_mpich() { pip_install -r <(grep '^mpich==' "$lock"); }

fill_venv() {
    echo "installing the packages of $lock"
    pip_install -r "$lock" && pip_install --no-build-isolation -e . || return
    stamp requirements.lock >.venv/.nearmetal-ready
    [ "$tests" = no ] || stamp requirements-dev.lock >>.venv/.nearmetal-ready
    rm .venv/.nearmetal-unfinished
    echo ".venv is ready"
}

# --- the whole -----------------------------------------------------------------------------------

[ "$(id -u)" = 0 ] || die "Setting up needs root: it installs packages and builds a root file system." \
    "Run it again as root (for example with sudo)."
(. /etc/os-release && [ "$ID-$VERSION_ID" = debian-12 ]) 2>/dev/null && [ "$(uname -m)" = x86_64 ] ||
    die "nearmetal runs on Debian 12 for x86-64; this is something else." \
        "Use a Debian 12 machine, container or VM."

python=
choose_python
say "preparing this machine: packages, Python, userland, tools (only what is missing)"
install_packages

# Side by side: they wait for different things (network, disk, compiler). The modules that build
# the userland and the tools need Python's own library and mpich alone: they do not wait for the
# rest of .venv.
if ! python_ready; then
    say "python: packages of $lock into .venv (about 60 s)"
    make_venv
    start mpich install_mpich
    await || die "Python packages cannot be installed." "Check the network, then run it again."
    start python fill_venv
fi
export PYTHONPATH=src
start userland .venv/bin/python -m nearmetal.userland
start tools .venv/bin/python -m nearmetal.tools
await || die "Setting up is not complete." "See above; then run it again."
say "ready (cache: ${NEARMETAL_CACHE:-/var/cache/nearmetal})"
