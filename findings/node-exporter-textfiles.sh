#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors
#
# node_exporter 1.9.0 (Debian 13): text files of several programs on one node, each valid by itself, with metrics of the same name.
#
# A good guess: series with other labels are different series, so all of them are in the answer, whether a file has a HELP line or not. If
# two files contradict each other, node_textfile_scrape_error is 1, and alerts on it fire. A file cannot replace what the node itself measures.
#
# What happens: a HELP line in the first file only, or a counter in one file and a gauge in the other, make the series of the second file
# vanish. If both files have a series, the first value is served. node_textfile_scrape_error stays 0, the success of the collector stays 1,
# node_textfile_mtime_seconds lists both files, and the status is 200. Only the log and the exporter's counter of gathering errors tell it.
# A series with the name of one of the node's own replaces it in some of the answers, by chance, so its value alternates. Of all these
# contradictions, only HELP lines with different texts set the error. The script needs root, and Debian.
set -euo pipefail

dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
cd "$dir" && mkdir -p state/lists/partial cache/archives/partial root/{dev,proc,sys,tmp,usr/{lib,lib64,sbin,bin}}
# shellcheck disable=SC2016 # apt replaces it
echo "deb $(apt-get indextargets --format '$(REPO_URI)' 'Created-By: Packages' 'Label: Debian' | head -1) trixie main" >sources && touch status
options=(-qq -o Dir::Etc::SourceList="$dir/sources" -o Dir::Etc::SourceParts=- -o Dir::State="$dir/state"
	-o Dir::State::status="$dir/status" -o Dir::Cache="$dir/cache" -o APT::Sandbox::User=root -o APT::Install-Recommends=0)
apt-get "${options[@]}" update
apt-get "${options[@]}" install --download-only -y prometheus-node-exporter=1.9.0-1+b4 curl >log
for top in lib lib64 sbin bin; do ln -s "usr/$top" "root/$top"; done
for deb in cache/archives/*.deb; do dpkg-deb --fsys-tarfile "$deb" | tar -x -C root --keep-directory-symlink; done
scrape() { chroot root curl -sw 'status %{http_code}\n' 127.0.0.1:9100/metrics; }
# answer A B: what the exporter answers when the two files have these texts.
answer() {
	printf '%b' "$1" >root/tmp/files/a.prom && printf '%b' "$2" >root/tmp/files/b.prom && scrape >out
	grep -E '^(pods|adds|node_textfile_scrape_error|status)' out | paste -sd ','
	echo "  $(grep -c '^node_textfile_mtime' out) files read, success of the collector $(grep -oP 'success.*textfile"} \K.*' out)"
}
cases() {
	ip link set lo up && mount -t proc none root/proc && mount --bind /dev root/dev && mount -t sysfs -o ro none root/sys && mkdir root/tmp/files
	chroot root prometheus-node-exporter --collector.disable-defaults --collector.textfile --collector.loadavg \
		--collector.textfile.directory=/tmp/files --web.listen-address=127.0.0.1:9100 2>errors & sleep 3
	echo "HELP in one file: $(answer '# HELP pods Pods.\n# TYPE pods gauge\npods{net="a"} 1\n' '# TYPE pods gauge\npods{net="b"} 2\n')"
	echo "two types: $(answer '# TYPE adds counter\nadds{net="a"} 1\n' '# TYPE adds gauge\nadds{net="b"} 2\n')"
	echo "the same series: $(answer 'pods 1\n' 'pods 2\n')"
	echo "two HELP texts: $(answer '# HELP pods Pods.\npods{net="a"} 1\n' '# HELP pods All pods.\npods{net="b"} 2\n')"
	echo "a series of the node: $(answer '# TYPE node_load1 gauge\nnode_load1 4711\n' '')"
	for _ in {1..60}; do scrape | grep '^node_load1 ' | sed -E '/ 4711$/!s/ .*/ of the node/'; done | sort -u
	kill -9 -1
}
export -f cases answer scrape
chroot root prometheus-node-exporter --version 2>&1 | head -1
(unshare -nmp --fork --kill-child bash -euo pipefail -c cases || :) | tee seen
diff - seen <<'END'
HELP in one file: node_textfile_scrape_error 0,pods{net="a"} 1,status 200
  2 files read, success of the collector 1
two types: adds{net="a"} 1,node_textfile_scrape_error 0,status 200
  2 files read, success of the collector 1
the same series: node_textfile_scrape_error 0,pods 1,status 200
  2 files read, success of the collector 1
two HELP texts: node_textfile_scrape_error 1,pods{net="a"} 1,status 200
  2 files read, success of the collector 1
a series of the node: node_textfile_scrape_error 0,status 200
  2 files read, success of the collector 1
node_load1 4711
node_load1 of the node
END
