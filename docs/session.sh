#!/bin/bash
# Records docs/session.svg, the picture in the README: a real session with the program named, by default target/release/kura.
# Needs libnbd-bin, e2fsprogs, Python with rich (pip install rich), kura's default ports, and leave to make the folder /srv/vm.
set -eu -o pipefail
root=$(realpath "$(dirname "$0")/..")
program=$(realpath "${1:-$root/target/release/kura}")
mkdir /srv/vm && cd /srv/vm
trap 'rm -r /srv/vm' EXIT
mkdir bin && ln -s "$program" bin/kura && export PATH=$PWD/bin:/usr/sbin:$PATH

say() { echo "\$ $*"; }
run() { say "$*"; eval "$@" 2>&1; }
ready() { until grep -q ^ready "$1"; do sleep 0.1; done; }
uri="'nbd+unix:///demo?socket=kura-data/nbd.sock'"

session() {
    say "kura serve &"
    kura serve > first.log 2> /dev/null & first=$!
    ready first.log && cat first.log
    mkdir files && head -c 64M /dev/urandom > files/data
    run "mkfs.ext4 -q -d files disk.img 1G" | grep -v ^Creating
    run "nbdcopy disk.img $uri"
    run "nbdinfo --map --totals $uri"
    run "kura snapshot create demo@monday"
    run "kura object put demo/kura.toml $root/docs/kura.toml" | sed "s:$root/::"
    say "kill -9 %1          # a crash"
    kill -9 $first; wait $first 2> /dev/null || true
    say "kura serve > log &"
    kura serve > log 2> /dev/null & second=$!
    ready log
    run "grep replayed log"
    run "kura check"
    run "kura status"
    kill $second; wait $second
}

session > session.txt
python3 - session.txt "$root/docs/session.svg" <<'PYTHON'
import sys
from rich.console import Console
from rich.text import Text

console = Console(record=True, width=118, file=open("/dev/null", "w"))
for line in open(sys.argv[1]):
    is_prompt = line.startswith("$ ")
    console.print(Text(line.rstrip("\n"), style="bold green" if is_prompt else ""), soft_wrap=False)
# Not every viewer keeps no-break spaces.
picture = console.export_svg(title="kura").replace("<svg ", '<svg xml:space="preserve" ', 1).replace("&#160;", " ")
open(sys.argv[2], "w").write(picture)
PYTHON
