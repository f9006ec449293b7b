#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors
#
# The tables of ENIs by instance type: github.com/aws/amazon-vpc-cni-k8s v1.23.2, amazon-vpc-resource-controller-k8s v1.8.2.
#
# A good guess: AWS generates both tables from EC2's description of a type. So both tables have the same number of ENIs for a type.
# GetENILimit, "the number of ENIs that can be attached to an instance", returns this number, from whatever source.
#
# What happens: for a type with several network cards, the table of the CNI has the ENIs of one card. The table of the controller has the
# ENIs of all cards. For p5en.48xlarge, the numbers are 4 and 64. But if its table lacks a type, the CNI asks EC2, and takes EC2's number,
# which is for all cards. So one limit has two meanings, and a release that adds a type to the table changes the limit of this type. The
# CNI's table lacks 51 types of the controller's table, such as all of c7g-flex and r9g. It has 19 types that the controller's table lacks.
# The script needs Go.
set -euo pipefail

dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
cd "$dir"
printf 'module example.com/limits\n\ngo 1.26\n' >go.mod
where() { go mod download -json "github.com/aws/$1" | sed -n 's/.*"Dir": "\(.*\)",/\1/p'; }
cni=$(where amazon-vpc-cni-k8s@v1.23.2)
controller=$(where amazon-vpc-resource-controller-k8s@v1.8.2)
# parse FILE: of each type the ENIs, the addresses of an ENI, the cards, the ENIs of the first card, and those of all.
parse() {
	awk '/^\t"/ { split($0, part, "\""); t = part[2]; types[t] }
		/^\t+(Interface|ENILimit):/ { enis[t] = $2 + 0 }
		/^\t+(IPv4PerInterface|IPv4Limit):/ { addrs[t] = $2 + 0 }
		/^\t+MaximumNetworkInterfaces:/ { if (!cards[t]++) first[t] = $2 + 0; sum[t] += $2 }
		END { for (t in types) print t, enis[t], addrs[t], cards[t] + 0, first[t] + 0, sum[t] + 0 }' "$1" | LC_ALL=C sort
}
parse "$cni/pkg/vpc/vpc_ip_resource_limit.go" >cni
parse "$controller/pkg/aws/vpc/limits.go" >controller
LC_ALL=C join cni controller | awk '
	{ both++; other += $3 != $8 }
	$2 != $7 { enis++; one += $4 > 1 && $2 == $5; all += $9 > 1 && $7 == $11 }
	END { print "types in both: " both ", with other addresses: " other ", with other ENIs: " enis
		print "  of these with several cards, and the ENIs of one in the CNI: " one ", of all in the controller: " all }' | tee seen
echo "only in the CNI: $(LC_ALL=C join -v 1 cni controller | wc -l), only in the controller: $(LC_ALL=C join -v 2 cni controller | wc -l)" | tee -a seen
for t in c6in.32xlarge p5en.48xlarge r9g.large; do
	echo "$t: ENIs: $(sed -n "s/^$t \([0-9]*\) .*/\1/p" cni) $(sed -n "s/^$t \([0-9]*\) .*/\1/p" controller)"
done | tee -a seen
# What the CNI does if its table lacks the type.
grep -o 'eniLimit := int(.*NetworkInfo.MaximumNetworkInterfaces))' "$cni/pkg/awsutils/awsutils.go"
diff - seen <<'EOF'
types in both: 1372, with other addresses: 0, with other ENIs: 64
  of these with several cards, and the ENIs of one in the CNI: 64, of all in the controller: 64
only in the CNI: 19, only in the controller: 51
c6in.32xlarge: ENIs: 8 16
p5en.48xlarge: ENIs: 4 64
r9g.large: ENIs:  3
EOF
