#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors
#
# cloud-init 25.1.4 (Debian 13): a network configuration of version 2 whose second interface has a route table of its own.
#
# A good guess: `table` and `from` of a route, and `routing-policy`, are netplan's keys, and cloud-init's own EC2 data source writes them.
# cloud-init hands them on to netplan. For systemd-networkd and NetworkManager, it writes the equivalent settings, as it does for metrics.
# If it cannot write a setting, it refuses the configuration. Or it leaves out the whole route, because a route without its table is another
# route.
#
# What happens: the conversion prints no message. For systemd-networkd and NetworkManager, the rule is gone, and the routes are written
# without table and source. So they go to the main table. The default route of the second interface then competes with the default route of
# the first interface. It has no metric, so it wins over a default route by DHCP, for all traffic of the instance. For systemd-networkd,
# `on-link` and the route's `mtu` are gone, too. For NetworkManager, the metric of DHCP's routes is gone. `cloud-init schema` reports the
# keys of the routes as unexpected, but not `routing-policy`. Only netplan gets all settings. The script needs root, and Debian.
set -euo pipefail

dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
cd "$dir" && mkdir -p state/lists/partial cache/archives/partial root/{etc/{ssl/certs,cloud},usr/{lib,lib64,sbin,bin},tmp,run}
# shellcheck disable=SC2016 # apt replaces it
echo "deb $(apt-get indextargets --format '$(REPO_URI)' 'Created-By: Packages' 'Label: Debian' | head -1) trixie main" >sources
options=(-qq -o Dir::Etc::SourceList="$dir/sources" -o Dir::Etc::SourceParts=- -o Dir::State="$dir/state"
	-o Dir::State::status=/dev/null -o Dir::Cache="$dir/cache" -o APT::Sandbox::User=root)
apt-get "${options[@]}" update
apt-get "${options[@]}" download cloud-init=25.1.4-1+deb13u1 ca-certificates libc6 libexpat1 zlib1g libssl3t64 libpython3.13-minimal \
	libpython3.13-stdlib python3.13-minimal libffi8 liblzma5 libbz2-1.0 libuuid1 libgcc-s1 libyaml-0-2 libzstd1 python3-{configobj,markupsafe,jinja2} \
	python3-{json-pointer,jsonpatch,attr,rpds-py,referencing,jsonschema-specifications,jsonschema,certifi,charset-normalizer} \
	python3-{idna,urllib3,chardet,requests,yaml}
for deb in *.deb; do dpkg -x "$deb" root; done
for top in lib lib64 sbin bin; do ln -s "usr/$top" "root/$top"; done
cat root/usr/share/ca-certificates/mozilla/*.crt >root/etc/ssl/certs/ca-certificates.crt # an import of Python reads it
echo systemd-network:x:998:998::/:/bin/false >root/etc/passwd && echo systemd-network:x:998: >root/etc/group
python=(chroot root /usr/bin/python3.13)
"${python[@]}" -c 'import cloudinit.version as v; print("cloud-init", v.version_string())'

cat >root/tmp/v2 <<'EOF'
network:
  version: 2
  ethernets:
    ens6:
      match: {macaddress: "02:00:00:00:00:02"}
      set-name: ens6
      dhcp4: true
      dhcp4-overrides: {route-metric: 200}
      routes:
      - {to: 0.0.0.0/0, via: 10.0.2.1, table: 102}
      - {to: 10.9.0.0/16, via: 10.0.2.1, mtu: 1500, on-link: true, from: 10.0.2.20, table: 102}
      routing-policy:
      - {from: 10.0.2.20, table: 102}
EOF
cloud_init() { "${python[@]}" -m cloudinit.cmd.main "$@" 2>&1; }
cloud_init schema --schema-type network-config -c /tmp/v2 | grep -oE "'[a-z', -]+ (was|were) unexp[a-z]+" | tee seen || :
for renderer in networkd network-manager netplan; do
	cloud_init devel net-convert -p /tmp/v2 -k yaml -d "/tmp/$renderer" -D debian -O $renderer | grep -vE '^(Read|Wrote|$)' || :
	echo "$renderer: $(grep -rhiE --include '*6.n*' --include '*.yaml' \
		'^[^#]*(route|gateway|destination|table|from|mtu|link:|policy|via|metric)' "root/tmp/$renderer" | tr -s ' \n' ' ')"
done | fold -sw 130 | sed 's/ $//' | tee -a seen
diff - seen <<'EOF'
'table' was unexpected
'from', 'mtu', 'on-link', 'table' were unexpected
networkd: RouteMetric=200 [Route] Destination=0.0.0.0/0 Gateway=10.0.2.1 [Route] Destination=10.9.0.0/16 Gateway=10.0.2.1
network-manager: route1=0.0.0.0/0,10.0.2.1 route2=10.9.0.0/16,10.0.2.1 route2_options=mtu=1500
netplan:  route-metric: 200 routes: - table: 102 via: 10.0.2.1 - from: 10.0.2.20 mtu: 1500 on-link: true table: 102 via: 10.0.2.1
routing-policy: - from: 10.0.2.20 table: 102
EOF
