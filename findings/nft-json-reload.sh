#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors
#
# nftables 1.0.6 (Debian 12) and 1.1.3 (Debian 13): a ruleset that `nft -j list ruleset` writes and `nft -j -f` reads is another ruleset.
#
# A good guess: both commands are the same program with the same library. libnftables-json(5) has each of these words, and neither command
# prints a message. So the ruleset is the same as before, as with `nft list ruleset` and `nft -f`.
#
# What happens with 1.0.6: a table with the flag dormant, whose chains the kernel does not call, comes back without it. So its rules, which
# did nothing, take effect. The JSON itself does not have the flag: a program that reads the JSON takes the table for an active table.
# Comments of tables and chains are gone, and so are the values of a ct timeout's policy. A chain of the family netdev is written without
# its device, and cannot be read at all. With 1.1.3, all of these stay. But with both versions, counters of elements of a set begin at zero
# again: the JSON has them, but nft does not read them. Counters of rules keep their values. The script needs root, Debian 12 or later, and
# a kernel with nftables.
set -euo pipefail

dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
# shellcheck disable=SC2016 # apt replaces it
mirror=$(apt-get indextargets --format '$(REPO_URI)' 'Created-By: Packages' 'Label: Debian' | head -1)
for suite in bookworm trixie; do
	mkdir -p "$dir/$suite"/{state/lists/partial,cache/archives/partial}
	echo "deb $mirror $suite main" >"$dir/$suite/sources"
done

# get SUITE VERSION LIBRARIES: unpack this nft, and the libraries that it runs with.
get() {
	local at=$dir/$1 options
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
# again SUITE RULESET: what is left of the ruleset by way of JSON, as a difference of lists.
again() {
	nft "$1" flush ruleset && nft "$1" -f - <<<"$2"
	nft "$1" list ruleset >"$dir/before"
	nft "$1" -j list ruleset >"$dir/json" && nft "$1" flush ruleset
	nft "$1" -j -f "$dir/json" 2>&1 | grep -o 'Error: [^,]*' | head -1
	nft "$1" list ruleset | diff "$dir/before" - | grep '^[<>]' | tr -d '\t' | tr '\n' ' ' || :
}
cases() {
	suite=$1
	nft "$suite" --version
	echo "dormant: $(again "$suite" $'table ip t {\nflags dormant\nchain c {\ntype filter hook input priority 0; drop\n}\n}')"
	echo "comment: $(again "$suite" $'table ip t {\ncomment "why"\nchain c {\ncomment "what"\n}\n}')"
	echo "device: $(again "$suite" $'table netdev t {\nchain c {\ntype filter hook ingress device lo priority 0; accept\n}\n}')"
	echo "timeout: $(again "$suite" $'table ip t {\nct timeout a {\nprotocol tcp; l3proto ip\npolicy = { established : 100, close : 4 }\n}\n}')"
	echo "element: $(again "$suite" $'table ip t {\nset s {\ntype ipv4_addr; counter\nelements = { 192.0.2.1 counter packets 4 bytes 9 }\n}\n}')"
	echo "rule: $(again "$suite" $'table ip t {\nchain c {\ncounter packets 7 bytes 8\n}\n}')"
}

get bookworm 1.0.6-2+deb12u2 && get trixie 1.1.3-1
export -f nft again cases && export dir
for suite in bookworm trixie; do unshare --net bash -euo pipefail -c "cases $suite"; done | tee "$dir/seen"
diff - <(sed 's/ *$//' "$dir/seen" | grep -v '^< table netdev') <<'END'
nftables v1.0.6 (Lester Gooch #5)
dormant: < flags dormant <
comment: < comment "why" < comment "what"
device: Error: Missing `device' in this chain definition
timeout: < policy = { established : 100, close : 4 } > policy = {  }
element: < elements = { 192.0.2.1 counter packets 4 bytes 9 } > elements = { 192.0.2.1 counter packets 0 bytes 0 }
rule:
nftables v1.1.3 (Commodore Bullmoose #4)
dormant:
comment:
device:
timeout:
element: < elements = { 192.0.2.1 counter packets 4 bytes 9 } > elements = { 192.0.2.1 counter packets 0 bytes 0 }
rule:
END
