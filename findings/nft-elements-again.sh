#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors
#
# Linux 6.18, by nftables 1.1.3 (Debian 13): an element that a set has already is added again, with another timeout or without one.
#
# A good guess: `add element` of an element that is there changes nothing, and is no error. So a service that adds its list again at each
# start does no harm. Kernels before 6.12 did so. Or the time of the element begins again, as with `update` in a rule.
#
# What happens: the kernel compares timeouts. If the message has no timeout, the timeout of the set counts. The same timeout changes
# nothing: an element with a timeout of an hour, added again after 59 minutes, has a minute left. Only `expires` moves its end. If the
# timeout differs, the kernel takes the new timeout, and the time begins now. So an element with a timeout of a minute, added again without
# a timeout, gets the hour of the set. In a set without a timeout, it stays for ever. A permanent element that is added again with a timeout
# of a minute ends after this minute. `create element` is an error, and changes nothing. The script needs root, Debian 13's packages, and a
# kernel with nftables.
set -euo pipefail

dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
cd "$dir" && mkdir -p state/lists/partial cache/archives/partial
# shellcheck disable=SC2016 # apt replaces it
echo "deb $(apt-get indextargets --format '$(REPO_URI)' 'Created-By: Packages' 'Label: Debian' | head -1) trixie main" >sources
options=(-qq -o Dir::Etc::SourceList="$dir/sources" -o Dir::Etc::SourceParts=- -o Dir::State="$dir/state"
	-o Dir::State::status=/dev/null -o Dir::Cache="$dir/cache" -o APT::Sandbox::User=root)
apt-get "${options[@]}" update
apt-get "${options[@]}" download nftables=1.1.3-1 libnftables1=1.1.3-1 libnftnl11 libmnl0 libjansson4 libxtables12 libgmp10 libedit2 \
	libtinfo6 libbsd0 libmd0 libc6
for deb in *.deb; do dpkg -x "$deb" root; done

nft() { "$(echo root/usr/lib/*/ld-linux-*)" --library-path "$(echo root/usr/lib/*-linux-gnu)" root/usr/sbin/nft "$@"; }
# elements WHEN: the elements of both sets, with what they have left, without the last digit.
elements() { echo "$1: $(nft list ruleset | grep -oE 'set [a-z]+|192[^,}]*' | sed -E 's/.s[0-9]*ms */_s/; s/192.0.2//; s/ *$/,/' | tr '\n' ' ')"; }
cases() {
	nft --version && uname -sr
	nft -f - <<<$'table ip t {\nset with {\ntype ipv4_addr; timeout 1h\n}\nset without {\ntype ipv4_addr; flags timeout\n}\n}'
	nft add element ip t with '{ 192.0.2.1, 192.0.2.2 timeout 1m }' && nft add element ip t without '{ 192.0.2.3, 192.0.2.4 timeout 1m }'
	sleep 15 && elements 'after 15 s'
	nft create element ip t with '{ 192.0.2.2 timeout 3h }' 2>&1 | head -1 || :
	nft add element ip t with '{ 192.0.2.1, 192.0.2.2 }' && nft add element ip t without '{ 192.0.2.3, 192.0.2.4 }' && elements 'added again'
	nft add element ip t without '{ 192.0.2.3 timeout 1m }' && elements 'with a minute'
	nft add element ip t with '{ 192.0.2.1 timeout 1h }' && elements 'with its own hour'
	nft add element ip t with '{ 192.0.2.1 expires 1h }' && elements 'with an end'
}
export -f nft elements cases
unshare --net bash -euo pipefail -c cases | tee seen
diff - <(sed '1,2d; s/, $//' seen) <<'EOF'
after 15 s: set with, .1 expires 59m4_s, .2 timeout 1m expires 4_s, set without, .3, .4 timeout 1m expires 4_s
Error: Could not process rule: File exists
added again: set with, .1 expires 59m4_s, .2 expires 59m5_s, set without, .3, .4
with a minute: set with, .1 expires 59m4_s, .2 expires 59m5_s, set without, .3 timeout 1m expires 5_s, .4
with its own hour: set with, .1 expires 59m4_s, .2 expires 59m5_s, set without, .3 timeout 1m expires 5_s, .4
with an end: set with, .1 expires 59m5_s, .2 expires 59m5_s, set without, .3 timeout 1m expires 5_s, .4
EOF
