#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors
#
# util-linux 2.38.1 (Debian 12) and 2.41.5 (Debian 13), on Linux 6.18: a program that nsenter has started is stopped, continued, and
# ends, and nsenter does not notice.
#
# A good guess: nsenter --pid forks, because only a child is in the PID namespace, and then waits for the child. So it ends when the
# program ends, with the program's status, whatever signals others have sent to the program meanwhile, as unshare --fork does.
#
# What happens: when the program is stopped, nsenter stops itself, too. A process in the namespace can continue the program, but not
# nsenter, which is outside. The program then runs on and ends. It stays a zombie, and nsenter stays stopped: a supervisor that waits for
# nsenter learns of the end only when it continues nsenter as well. unshare --fork of the same packages ends with the program. The script
# needs root and Debian.
set -euo pipefail

dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
# shellcheck disable=SC2016 # apt replaces it
mirror=$(apt-get indextargets --format '$(REPO_URI)' 'Created-By: Packages' 'Label: Debian' | head -1)

# get SUITE VERSION: unpack this util-linux, and the libraries that nsenter runs with.
get() {
	local at=$dir/$1 options
	mkdir -p "$at"/{state/lists/partial,cache/archives/partial}
	echo "deb $mirror $1 main" >"$at/sources"
	options=(-qq -o Dir::Etc::SourceList="$at/sources" -o Dir::Etc::SourceParts=- -o Dir::State="$at/state"
		-o Dir::State::status=/dev/null -o Dir::Cache="$at/cache" -o APT::Sandbox::User=root)
	apt-get "${options[@]}" update
	(cd "$at" && apt-get "${options[@]}" download "util-linux=$2" libselinux1 libpcre2-8-0 libc6 &&
		for deb in *.deb; do dpkg -x "$deb" root; done)
}
# run SUITE PROGRAM ARGS...: a program of this util-linux.
run() {
	local root=$dir/$1/root libs; shift
	libs=$(find "$root" -name libc.so.6 -printf %h)
	exec "$(echo "$libs"/ld-linux-*)" --library-path "$libs:$root/usr/lib/$(basename "$libs")" "$root/usr/bin/$1" "${@:2}"
}
state() { awk '{print $3}' "/proc/$1/stat" 2>/dev/null || echo gone; }
# seen SUITE PROGRAM ARGS...: what is left of a program that starts sleep, after sleep was stopped, continued and has ended.
seen() {
	local parent child
	(run "$@" sleep 2) & parent=$!
	for ((i = 0; i < 100; i++)); do child=$(pgrep -P "$parent" -x sleep) && break; sleep 0.05; done
	kill -STOP "$child"; sleep 0.5
	kill -CONT "$child"; sleep 3
	echo "$2: $(state "$parent"), sleep: $(state "$child")"
	kill -CONT "$parent" 2>/dev/null || :
	wait "$parent" || :
}

get bookworm 2.38.1-5+deb12u3 && get trixie 2.41.5-0+deb13u1
for suite in bookworm trixie; do
	(run "$suite" nsenter --version) | sed 's/.* from //'
	seen "$suite" nsenter --target $$ --pid --
	seen "$suite" unshare --pid --fork --
done | tee "$dir/seen"
diff - "$dir/seen" <<'END'
util-linux 2.38.1
nsenter: T, sleep: Z
unshare: gone, sleep: gone
util-linux 2.41.5
nsenter: T, sleep: Z
unshare: gone, sleep: gone
END
