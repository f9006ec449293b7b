# Empty the network namespace of an instance: delete its links except lo, its routes and rules, and nftables. The simulator serves
# EC2 on lo. The links that come with the kernel modules of tunnels cannot be deleted.
set -e
links() { ip -o link show | sed 's/^[0-9]*: //; s/[@:].*//' | grep -vxE 'lo|tunl0|ip6tnl0|sit0|gre0|gretap0|erspan0|ip6gre0'; }
for link in $(links); do
	ip link delete "$link" 2>/dev/null || : # the kernel may have removed the link meanwhile, with the namespace of a pod
done
[ -z "$(links)" ]
for family in -4 -6; do
	ip $family rule flush # all rules except the rule of the table local
	ip $family rule add pref 32766 table main
	for table in $(ip -N $family route show table all | sed -n 's/.* table \([0-9]*\).*/\1/p' | grep -vx 255 | sort -u); do
		ip $family route flush table "$table"
	done
done
ip -4 rule add pref 32767 table default
nft flush ruleset
