#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors
#
# cnitool v1.3.1 with ptp and host-local of containernetworking/plugins v1.10.0: cnitool gc NETWORK NETNS, where pods are running.
#
# A good guess: the help says that the command "will clean up unused network interfaces in the specified network namespace". So if each
# interface is in use, the command changes nothing. It never changes a pod in another namespace.
#
# What happens: the command calls libcni's GC without a list of attachments. libcni takes the missing list for an empty list: no attachment
# is valid. So each pod of the network in libcni's cache gets a DEL, in any namespace. The namespace in the command line does not matter,
# and may have no pod. Two running pods lose their interface and their address. The command prints nothing and succeeds. Pods of other
# networks keep their interfaces. The script needs root, Go and ip(8).
set -euo pipefail

dir=$(mktemp -d)
trap 'chmod -R u+w "$dir"; rm -rf "$dir"' EXIT
cd "$dir"
plugins=github.com/containernetworking/plugins/plugins
for p in main/ptp ipam/host-local; do CGO_ENABLED=0 GOBIN=$dir/bin go install $plugins/$p@v1.10.0; done
CGO_ENABLED=0 GOBIN=$dir/bin go install github.com/containernetworking/cni/cnitool@v1.3.1
for network in red blue; do
	echo '{"cniVersion": "1.1.0", "name": "'$network'", "plugins": [{"type": "ptp", "ipam": {"type": "host-local",
		"subnet": "192.168.'${#network}'.0/24", "dataDir": "'"$dir"'/data"}}]}' >$network.conflist
done
bin/cnitool gc --help | grep 'in the specified network namespace'

cat >story <<'EOF'
export CNI_PATH=$PWD/bin NETCONFPATH=$PWD
for pod in red1 red2 blue1; do
	ip netns add $pod
	bin/cnitool add ${pod%[12]} /run/netns/$pod >/dev/null
done
ip netns add empty
has() { for pod in red1 red2 blue1; do ip -n $pod link show eth0 >/dev/null 2>&1 && echo -n " $pod"; done; }
echo "before:$(has)"
bin/cnitool gc red /run/netns/empty >said 2>&1 && echo "cnitool gc red empty succeeds, and says $(wc -c <said) bytes"
echo "after:$(has)"
echo "addresses of red:" $(cd data/red && ls -d 192.* 2>/dev/null)
EOF
unshare --net --mount sh -ec 'mount -t tmpfs run /run; mkdir -p /var/lib/cni; mount -t tmpfs cache /var/lib/cni
	ip link set lo up; sh story' | tee out
diff out - <<'EOF'
before: red1 red2 blue1
cnitool gc red empty succeeds, and says 0 bytes
after: blue1
addresses of red:
EOF
