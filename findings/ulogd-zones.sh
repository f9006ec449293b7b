#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors
#
# ulogd2 2.0.8 (Debian 13, Linux 6.18): flow records of connections in conntrack zones.
#
# A good guess: ulogd writes one record for each connection that ends, with the times of this connection. Zones do not matter. With a poll
# interval, it writes the same records, and only asks the kernel more often.
#
# What happens: ulogd finds a connection in its table by addresses and ports, without the zone. Two connections in two zones have equal
# addresses and ports: zones are made for this. Each record then has the start of the other connection. So a connection of 4 seconds seems 2
# seconds long, and the other one 6. This holds even if the kernel keeps the times itself (nf_conntrack_timestamp): ulogd takes the kernel's
# start, except that it is the start of the other connection. With a poll interval, ulogd writes one record for both, and no error. Without
# its table (hash_enable=0), the times are right. No record tells the zone. The script needs root, and Debian.
set -euo pipefail

dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
cd "$dir" && mkdir -p state/lists/partial cache/archives/partial root/{etc,proc,run,tmp,usr/{lib,lib64,sbin,bin}} && touch status
# shellcheck disable=SC2016 # apt replaces it
echo "deb $(apt-get indextargets --format '$(REPO_URI)' 'Created-By: Packages' 'Label: Debian' | head -1) trixie main" >sources
options=(-qq -o Dir::Etc::SourceList="$dir/sources" -o Dir::Etc::SourceParts=- -o Dir::State="$dir/state" -o APT::Install-Recommends=0
	-o Dir::State::status="$dir/status" -o Dir::Cache="$dir/cache" -o APT::Sandbox::User=root)
apt-get "${options[@]}" update
apt-get "${options[@]}" install --download-only -y conntrack=1:1.4.8-2 ulogd2=2.0.8-3 ulogd2-json=2.0.8-3 >log
for top in lib lib64 sbin bin; do ln -s "usr/$top" "root/$top"; done
for deb in cache/archives/*.deb; do dpkg-deb --fsys-tarfile "$deb" | tar -x -C root --keep-directory-symlink; done
cases() {
	mount -t proc none root/proc
	ct() { chroot root /usr/sbin/conntrack "$@" >/dev/null 2>&1; }
	add() { ct -I -p tcp -s 192.0.2.1 -d 192.0.2.2 --sport "$2" --dport 80 --state ESTABLISHED -t 600 -w "$1" -m "$1"; }
	# try PORT SETTING...: the connection in zone 1, with source port 4000, lives from second 0 to 4. That in zone 2, with PORT, from 2 to 6.
	try() {
		local plugins=/usr/lib/x86_64-linux-gnu/ulogd ulogd start
		rm -f root/run/flows && printf '%s\n' '[global]' logfile=/run/log plugin=$plugins/ulogd_{inpflow_NFCT,filter_IP2STR,output_JSON}.so \
			stack=ct:NFCT,ip:IP2STR,json:JSON '[ct]' "${@:2}" '[json]' file=/run/flows sync=1 >root/run/conf
		chroot root /usr/sbin/ulogd -c /run/conf & ulogd=$!
		sleep 2
		until [[ $(date +%N) = 1* ]]; do sleep 0.02; done
		start=$(date +%s)
		add 1 4000 && sleep 2 && add 2 "$1" && sleep 2 && ct -D -w 1 && sleep 2 && ct -D -w 2 && sleep 2
		kill $ulogd && wait $ulogd || :
		echo "source ports 4000 and $1, ${*:2}; records with a zone: $(grep -c zone root/run/flows || :)"
		sed -nE 's/.*"ct.mark": ([0-9]+), .*"ct.event": 4(.*"flow.start.sec": ([0-9]+))?(.*"flow.end.sec": ([0-9]+))?.*/\1 \3 \5/p' root/run/flows |
			while read -r mark from to; do
				if [ "$to" ]; then to=", from second $((from - start)) to $((to - start))"; fi
				echo "   connection of zone $mark$to"
			done
	}
	sysctl -qw net.netfilter.nf_conntrack_timestamp=1
	try 4001 hash_enable=1 && try 4000 hash_enable=1 && try 4000 hash_enable=0
	try 4001 hash_enable=1 pollinterval=1 && try 4000 hash_enable=1 pollinterval=1
}
export -f cases
chroot root /usr/sbin/ulogd --version | head -1
unshare --net --mount bash -euo pipefail -c cases | tee seen
diff - seen <<'EOF'
source ports 4000 and 4001, hash_enable=1; records with a zone: 0
   connection of zone 1, from second 0 to 4
   connection of zone 2, from second 2 to 6
source ports 4000 and 4000, hash_enable=1; records with a zone: 0
   connection of zone 1, from second 2 to 4
   connection of zone 2, from second 0 to 6
source ports 4000 and 4000, hash_enable=0; records with a zone: 0
   connection of zone 1, from second 0 to 4
   connection of zone 2, from second 2 to 6
source ports 4000 and 4001, hash_enable=1 pollinterval=1; records with a zone: 0
   connection of zone 1
   connection of zone 2
source ports 4000 and 4000, hash_enable=1 pollinterval=1; records with a zone: 0
   connection of zone 2
EOF
