#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors
#
# amazon-ec2-net-utils 2.4.1 with systemd-networkd 257 (Debian 13): a table and rules for each further ENI of an EC2 instance.
#
# A good guess: each ENI has a table of its own, so each answer leaves by the ENI that has its source address. The package reads metadata
# again each minute. If a request fails, it tries again, or leaves the rules and addresses as they are.
#
# What happens: the number of the table is the device number. Device numbers are unique per network card only: on instances with several
# cards, such as p5, the ENIs of cards 1, 2 and so on all have device number 1. So they share one table, with two default routes of one
# metric. The kernel takes one of them for both, so addresses of the other ENI are unreachable from other subnets. (Version 2.5 counts the
# cards.) On any instance, one failed request for the prefix of an ENI removes the prefix's rule, until the next minute. The package asks ten
# times for the addresses, but without a pause: if metadata is busy for less than a second, the ENI loses its secondary addresses and all
# their rules. The service succeeds each time. The script needs root, and Debian.
set -euo pipefail
dir=$(mktemp -d) && trap 'rm -rf "$dir"' EXIT
cd "$dir" && mkdir -p state/lists/partial cache/archives/partial root/{dev,etc,proc,sys,run,tmp,usr/{lib,lib64,sbin,bin}}
# shellcheck disable=SC2016 # apt replaces it
echo "deb $(apt-get indextargets --format '$(REPO_URI)' 'Created-By: Packages' 'Label: Debian' | head -1) trixie main" >sources && touch status
options=(-qq -o Dir::Etc::SourceList="$dir/sources" -o Dir::Etc::SourceParts=- -o Dir::State="$dir/state"
	-o Dir::State::status="$dir/status" -o Dir::Cache="$dir/cache" -o APT::Sandbox::User=root -o APT::Install-Recommends=0)
apt-get "${options[@]}" update
apt-get "${options[@]}" install --download-only -y amazon-ec2-net-utils=2.4.1-2 systemd=257.13-1~deb13u1 dnsmasq-base=2.91-1+deb13u2 \
	python3 bash bsdutils coreutils curl grep iproute2 sed >log
for top in lib lib64 sbin bin; do ln -s "usr/$top" "root/$top"; done
for deb in cache/archives/*.deb; do dpkg-deb --fsys-tarfile "$deb" | tar -x -C root --keep-directory-symlink; done
printf '%s\n' root:x:0:0::/: systemd-network:x:998:998::/: >root/etc/passwd && printf '%s\n' root:x:0: systemd-network:x:998: >root/etc/group
echo 0123456789abcdef0123456789abcdef >root/etc/machine-id
sed -i 's/^Driver=.*/Driver=veth/' root/usr/lib/systemd/network/80-ec2.network # here, the ENIs are of this driver
# shellcheck disable=SC2016 # the program's own text. There is no D-Bus here, and the signal does the same
printf '#!/bin/bash\nkill -HUP $(cat /run/networkd)\n' >root/usr/bin/networkctl && chmod +x root/usr/bin/networkctl
cat >root/tmp/metadata.py <<'END'
import http.server, sys
data, fail = {"/latest/meta-data/mac": "02:00:00:00:00:05"}, {}
for n, device, card in [(5, 0, 0), (6, 1, 1), (7, 1, 2)] if sys.argv[1] == "several" else [(5, 0, 0), (6, 1, 0), (7, 2, 0)]:
    for key, value in {"device-number": device, "network-card": card, "subnet-ipv4-cidr-block": f"10.0.{n}.0/24", "interface-id": f"eni-{n}",
            "local-ipv4s": f"10.0.{n}.10\n10.0.{n}.20", "ipv4-prefix": f"10.0.{n}.64/28"}.items():
        data[f"/latest/meta-data/network/interfaces/macs/02:00:00:00:00:0{n}/{key}"] = str(value)
class Metadata(http.server.BaseHTTPRequestHandler):
    def log_message(self, *_): pass
    def answer(self, status, body=""):
        self.send_response(status), self.send_header("Content-Length", len(body)), self.end_headers(), self.wfile.write(body.encode())
    def do_PUT(self): self.answer(200, "token")
    def do_DELETE(self): # the next requests for a key, so many as the script says, fail
        fail[self.path.split("/")[1]] = int(self.path.split("/")[2]); self.answer(200)
    def do_GET(self):
        last = self.path.split("/")[-1]; fail[last] = fail.get(last, 0) - 1
        self.answer(503) if fail[last] >= 0 else self.answer(200, data[self.path]) if self.path in data else self.answer(404)
http.server.HTTPServer(("169.254.169.254", 80), Metadata).serve_forever()
END
refresh() { for eni in "$@"; do chroot root setup-policy-routes "$eni" start >>log 2>&1 || echo "$eni: error"; done && sleep 3; }
show() { echo "$1: rules from $(ip rule show table 10001 | grep -o 'from [^ ]*' | cut -c6- | sort | paste -sd ' '), ens6 has $(ip -4 -br addr show ens6 |
	grep -o '10\.[0-9./]*' | paste -sd ' '), not reached:$(for ip in 10.0.{5,6,7}.{10,20}; do ip netns exec vpc ping -c 1 -W 1 -I 10.9.9.9 "$ip" >/dev/null || echo -n " $ip"; done)"; }
cards() {
	mount --bind /dev root/dev && mount -t proc none root/proc && mount -t sysfs -o ro none root/sys && mount -t tmpfs none root/run
	mount -t tmpfs none /run && mkdir root/run/systemd && ip link set lo up && ip addr add 169.254.169.254/32 dev lo
	ip netns add vpc && ip -n vpc link set lo up && ip -n vpc addr add 10.9.9.9/32 dev lo
	ip netns exec vpc sysctl -qw net.ipv4.conf.all.rp_filter=1 # like EC2, it drops packets whose source belongs to another ENI
	for n in 5 6 7; do
		ip link add ens$n address 02:00:00:00:00:0$n type veth peer name eni$n netns vpc && ip -n vpc link set eni$n up
		ip -n vpc addr add 10.0.$n.1/24 dev eni$n && set -- "$@" --dhcp-range=10.0.$n.2,static --dhcp-host=02:00:00:00:00:0$n,10.0.$n.10
	done
	ip netns exec vpc chroot root dnsmasq -d -C /dev/null -p 0 -u root -l /run/leases "${@:2}" 2>/dev/null &
	chroot root /usr/bin/python3 /tmp/metadata.py "$1" & chroot root /usr/lib/systemd/systemd-networkd 2>/dev/null & echo $! >root/run/networkd
	sleep 3 && EC2_IF_INITIAL_SETUP=true refresh ens5 ens6 ens7 && show "$1"
	if [ "$1" = one ]; then
		for fail in ipv4-prefix/1 local-ipv4s/20; do curl -sX DELETE "169.254.169.254/$fail" && refresh ens6 && show "$fail" && refresh ens6; done && show later
	fi && kill -9 -1
}
export -f cards refresh show && for what in one several; do unshare -nmp --fork --kill-child bash -euo pipefail -c "cards $what" || :; done | tee seen
# Which of the two ENIs is not reached changes with the kernel's neighbours.
sed -E '/^several/s/reached: 10\.0\.[67].*/reached: some/' seen | diff - /dev/fd/3 3<<'END'
one: rules from 10.0.6.10 10.0.6.20 10.0.6.64/28, ens6 has 10.0.6.10/24 10.0.6.20/32, not reached:
ipv4-prefix/1: rules from 10.0.6.10 10.0.6.20, ens6 has 10.0.6.10/24 10.0.6.20/32, not reached:
local-ipv4s/20: rules from 10.0.6.64/28, ens6 has 10.0.6.10/24, not reached: 10.0.6.10 10.0.6.20
later: rules from 10.0.6.10 10.0.6.20 10.0.6.64/28, ens6 has 10.0.6.10/24 10.0.6.20/32, not reached:
several: rules from 10.0.6.10 10.0.6.20 10.0.6.64/28 10.0.7.10 10.0.7.20 10.0.7.64/28, ens6 has 10.0.6.10/24 10.0.6.20/32, not reached: some
END
