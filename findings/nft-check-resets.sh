#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors
#
# nftables 1.0.6 (Debian 12) and 1.1.3 (Debian 13): `nft --check` with `reset`, and a file with `reset` that fails.
#
# A good guess: --check changes nothing: "Check commands validity without actually applying the changes", says nft(8). A file is one
# transaction, so if a later line fails, or the file cannot be parsed, nothing was reset.
#
# What happens: `nft --check reset counters` resets the counters, and a check also resets quotas, sets and rules, if the version has such a
# command. A quota that was used up lets traffic pass again. If the kernel refuses a rule of a file, 1.0.6 still resets, wherever the rule
# is. 1.1.3 resets only if the rule is before the reset. If nft cannot parse a file, 1.1.3 resets and prints no values, so the values are
# lost. 1.0.6 does not reset in this case. The script needs root, Debian 12 or later, and a kernel with nftables.
set -euo pipefail

dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
# shellcheck disable=SC2016 # apt replaces it
mirror=$(apt-get indextargets --format '$(REPO_URI)' 'Created-By: Packages' 'Label: Debian' | head -1)

# get SUITE VERSION: unpack this nft, and the libraries that it runs with.
get() {
	local at=$dir/$1 options
	mkdir -p "$at"/{state/lists/partial,cache/archives/partial}
	echo "deb $mirror $1 main" >"$at/sources"
	options=(-qq -o Dir::Etc::SourceList="$at/sources" -o Dir::Etc::SourceParts=- -o Dir::State="$at/state"
		-o Dir::State::status=/dev/null -o Dir::Cache="$at/cache" -o APT::Sandbox::User=root)
	apt-get "${options[@]}" update
	(cd "$at" && apt-get "${options[@]}" download "nftables=$2" "libnftables1=$2" libnftnl11 libmnl0 libjansson4 libxtables12 libgmp10 \
		libedit2 libtinfo6 libbsd0 libmd0 libc6 && for deb in *.deb; do dpkg -x "$deb" root; done)
}
# nft SUITE ARGS...
nft() {
	local root=$dir/$1/root libs; shift
	libs=$(find "$root" -name libc.so.6 -printf %h)
	"$(echo "$libs"/ld-linux-*)" --library-path "$libs:$root/usr/lib/$(basename "$libs")" "$root/usr/sbin/nft" "$@"
}
# fresh SUITE: a table in which something was counted.
fresh() {
	nft "$1" flush ruleset
	nft "$1" -f - <<<$'table ip t {\ncounter c {\npackets 7 bytes 8\n}\nquota q {\n500 bytes used 100 bytes\n}\nset s {\ntype ipv4_addr
		counter\nelements = { 192.0.2.1 counter packets 9 bytes 9 }\n}\nchain r {\ncounter packets 5 bytes 6\n}\n}'
}
left() { nft "$1" list ruleset | grep -oE 'packets [0-9]+|used [0-9]+|500 bytes$|^.(counter|quota|chain|set)' | tr -d '\t' | tr '\n' ' '; }
cases() {
	local suite=$1 what
	nft "$suite" --version
	# shellcheck disable=SC2086 # several words
	for what in counters quotas 'set ip t s' rules; do
		fresh "$suite" && (nft "$suite" --check reset $what || :) >/dev/null 2>&1
		echo "check of reset $what: $(left "$suite")"
	done
	for what in 'reset counters\nadd rule ip none r accept' 'add rule ip none r accept\nreset counters' 'reset counters\nadd rule ip t r accpt'; do
		fresh "$suite"
		echo "$what: printed $(echo -e "$what" | nft "$suite" -f - 2>/dev/null | grep -c packets), $(left "$suite" | cut -d ' ' -f 1-3) left"
	done
}
get bookworm 1.0.6-2+deb12u2 && get trixie 1.1.3-1
export -f nft fresh left cases && export dir
for suite in bookworm trixie; do unshare --net bash -euo pipefail -c "cases $suite"; done | tee "$dir/seen"
diff - <(sed 's/ $//' "$dir/seen") <<'END'
nftables v1.0.6 (Lester Gooch #5)
check of reset counters: counter packets 0 quota used 100 set packets 9 chain packets 5
check of reset quotas: counter packets 7 quota 500 bytes set packets 9 chain packets 5
check of reset set ip t s: counter packets 7 quota used 100 set packets 9 chain packets 5
check of reset rules: counter packets 7 quota used 100 set packets 9 chain packets 5
reset counters\nadd rule ip none r accept: printed 1, counter packets 0 left
add rule ip none r accept\nreset counters: printed 1, counter packets 0 left
reset counters\nadd rule ip t r accpt: printed 0, counter packets 7 left
nftables v1.1.3 (Commodore Bullmoose #4)
check of reset counters: counter packets 0 quota used 100 set packets 9 chain packets 5
check of reset quotas: counter packets 7 quota 500 bytes set packets 9 chain packets 5
check of reset set ip t s: counter packets 7 quota used 100 set packets 0 chain packets 5
check of reset rules: counter packets 7 quota used 100 set packets 9 chain packets 0
reset counters\nadd rule ip none r accept: printed 1, counter packets 7 left
add rule ip none r accept\nreset counters: printed 1, counter packets 0 left
reset counters\nadd rule ip t r accpt: printed 0, counter packets 0 left
END
