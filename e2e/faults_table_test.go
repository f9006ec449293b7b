// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package e2e

// A fault is a fault of a node, and the reports that the programs must give of it.
type fault struct {
	name   string
	inject string // the commands that make the fault; testdata/faults.sh has functions for them
	want   string // a regular expression that each finding of doctor must match; "": doctor finds nothing
	cure   string // commands that end the fault, one in a line, as doctor or the runbook quotes them
	why    string // why doctor finds nothing, or why no command ends the fault
	undo   string // the commands by which the test ends the fault
	pods   bool   // the test also tries to add a new pod

	unfixed bool // doctor --fix repairs only a part of the fault
	often   bool // the test makes the fault even without -faults
}

// faults has the parts of the page docs/faults.md. Each part has its own node.
var faults = []struct {
	heading string
	faults  []fault
}{
	{"What the node has lost of a pod", []fault{
		{name: "The route to a pod is gone", inject: "ip route del $(addr)",
			want: "leftovers: .*ip route replace .*The spare route"},
		{name: "Both routes to a pod are gone", inject: "ip route del $(addr); ip route del $(addr)",
			want: "leftovers: .*do not reach each other"},
		{name: "systemd-networkd has removed the pod's rule", often: true, inject: "ip rule del iif $(veth)",
			want: "leftovers: .*ip rule add .*Services fail"},
		{name: "The pod's table is empty", inject: "ip route flush table $(table)",
			want: "leftovers: .*ip route add .*Services fail"},
		{name: "The pod's link on the node is down", inject: "ip link set $(veth) down",
			want: "leftovers: .*do not reach each other"},
		{name: "The pod's veth pair is deleted", inject: "ip link del $(veth)",
			want: "leftovers: .*(the veth pair of a running pod is gone|the link of this rule is gone)"},
	}},
	{"What a pod has lost in its own namespace", []fault{
		{name: "The pod's default route is gone", inject: "ip -n cart route del default",
			want: "leftovers: .*in the pod's own namespace, .*: ip route add default", cure: replaced},
		{name: "The pod's address is gone", inject: "ip -n cart addr flush dev eth0",
			want: "leftovers: .*in the pod's own namespace, .*: ip addr add", cure: replaced},
		{name: "The pod's link is down", inject: "ip -n cart link set eth0 down",
			want: "leftovers: .*in the pod's own namespace, .*the link is down", cure: replaced},
		{name: "The pod has a wrong neighbour for its gateway",
			inject: "ip -n cart neigh replace 100.64.32.1 lladdr 02:00:00:00:00:99 dev eth0",
			why:    "a pod's neighbours are its own business, and doctor sends no packets in the name of a pod",
			undo:   "ip -n cart neigh del 100.64.32.1 dev eth0"},
	}},
	{"The node", []fault{
		{name: "Another program has flushed the ruleset", often: true, inject: "nft flush ruleset",
			want: "security groups|our table with all masquerading is gone"},
		{name: "Forwarding is off", inject: "sysctl -w net.ipv4.ip_forward=0", want: "sysctl: .*the value is 0",
			cure: "~sysctl -w net.ipv4.ip_forward=1"},
		{name: "The boot ENI's link does not forward", often: true,
			inject: "sysctl -w net.ipv4.conf.eth0.forwarding=0",
			want:   "sysctl: .*eth0.forwarding=1.*the value is 0"},
		{name: "A pair accepts router advertisements", often: true,
			inject: "sysctl -w net.ipv6.conf.$(veth).forwarding=0 net.ipv6.conf.$(veth).accept_ra=1",
			want:   "leftovers: .*accept_ra=0.*IPv6 router"},
		{name: "The kernel checks sources, strictly", inject: "sysctl -w net.ipv4.conf.all.rp_filter=1",
			undo: "sysctl -w net.ipv4.conf.all.rp_filter=0"},
		{name: "The boot ENI's link checks sources, strictly", inject: "sysctl -w net.ipv4.conf.eth0.rp_filter=1",
			want: "sysctl: .*the value is 1", cure: "~sysctl -w net.ipv4.conf.eth0.rp_filter=2"},
		{name: "All rules are deleted", inject: "ip rule flush",
			want: "leftovers: .*ip rule add|answers: .*no rule leads to the main table|could not be made|metadata " +
				"service: no answer",
			cure: "ip rule add pref 32766 lookup main && cni-tool repair"},
		{name: "An ENI's link is down", inject: "ip link set eth1 down", want: "links: .*the link is down",
			cure: "~ip link set eth1 up"},
		{name: "An ENI has another MTU", inject: "ip link set eth1 mtu 1400",
			want:    "links: .*(the link's MTU is 1400|IPv6 on eth0 sends packets)|leftovers: .*a smaller MTU",
			unfixed: true,
			why:     "the MTU of an ENI with pods stays, because its pods have it, too: drain the node",
			undo:    "ip link set eth1 mtu 9001; renew cart; renew till"},
		{name: "The node has a pod's address", inject: "ip addr add $(addr)/32 dev eth1",
			want: "addresses: .*the node's link eth1 has this address", cure: "~ip address del \\S+ dev eth1"},
		{name: "A rule of another program catches the pod's packets",
			inject: "ip rule add from $(addr) lookup 100; ip route add default dev eth0 table 100",
			want:   "rules: .*take the wrong way", cure: "cni-tool doctor --check rules --fix",
			undo: "ip route flush table 100"},
		{name: "A rule of another program catches the node's packets",
			inject: "ip route add default dev eth0 table 100; ip rule add from 10.0.0.4 lookup 100",
			want:   "answers: .*because of the rule",
			cure:   "~ip rule add pref \\d+ iif lo lookup main suppress_prefixlength 31",
			undo: "ip rule del iif lo lookup main suppress_prefixlength 31; ip rule del from 10.0.0.4; ip route " +
				"flush table 100"},
		{name: "The same, with the rule of the runbook",
			inject: "ip route add default dev eth0 table 100; ip rule add from 10.0.0.4 lookup 100",
			want:   "answers: .*because of the rule",
			cure:   "ip rule add pref 100 iif lo lookup main suppress_prefixlength 31",
			undo: "ip rule del iif lo lookup main suppress_prefixlength 31; ip rule del from 10.0.0.4; ip route " +
				"flush table 100"},
		{name: "A rule of a VPN catches all packets to pods",
			inject: "ip link add tailscale0 type dummy; ip link set tailscale0 up; ip rule add pref 5270 lookup 52; " +
				"ip route add 100.64.0.0/10 dev tailscale0 table 52",
			want: "answers: .*because of the rule .*lookup 52",
			cure: "ip rule add pref 511 iif lo lookup main suppress_prefixlength 31 && ip rule add pref 511 iif eth0 " +
				"lookup main suppress_prefixlength 31",
			undo: "ip rule del pref 511; ip rule del pref 511; ip rule del pref 5270; ip link del tailscale0"},
		{name: "A firewall drops what the node forwards",
			inject: "nft add table inet filter; nft add chain inet filter forward '{ type filter hook forward " +
				"priority 0; policy drop; }'",
			want: "firewall: .*the chain drops all packets", unfixed: true,
			why: "rules for `iifgroup 72` and `oifgroup 72` in that chain, as for each firewall in [the " +
				"runbook](operations.md#the-firewall-drops-what-the-node-forwards). Doctor then warns, because it " +
				"does not follow the rules",
			undo: "nft add rule inet filter forward iifgroup 72 accept; nft add rule inet filter forward oifgroup 72 " +
				"accept; works; nft delete table inet filter"},
		{name: "A rule of a firewall drops it", inject: "nft add table inet filter; nft add chain inet filter " +
			"forward '{ type filter hook forward priority 0; policy accept; }'; nft add rule inet filter forward " +
			"iifname 'veth*' drop",
			why: "doctor reads the policy of each chain, and not its rules: a rule can also match addresses and " +
				"ports, so doctor cannot know which packets it drops", undo: "nft delete table inet filter"},
		{name: "The wire of an ENI loses all packets", inject: "tc qdisc add dev eth1 root netem loss 100%",
			why:  "doctor reads and sends nothing: only the packets themselves show this",
			undo: "tc qdisc del dev eth1 root"},
	}},
	{"The registry", []fault{
		{name: "The registry is deleted", inject: "rm $state/registry.json",
			want: "agreement: registry: the registry is empty", cure: "cni-tool registry-gc --free-after=15m"},
		{name: "The registry is damaged", inject: "echo garbage >$state/registry.json",
			want: "state: .*cannot be read|agreement: .*could not be made",
			cure: "cni-tool registry-gc --free-after=15m", undo: "rm $state/*.bad-*"},
		{name: "A later release wrote the registry",
			inject: "cp $state/registry.json /root/registry; sed -i 's/\"schema_version\":1/\"schema_version\":9/' " +
				"$state/registry.json",
			want: "state: .*cannot be read|plugins: |agreement: .*could not be made",
			why:  "install that release, or delete the file",
			undo: "rm $state/registry.json; cni-tool registry-gc --free-after=15m", pods: true},
		{name: "The state directory is read-only", inject: "mount -t tmpfs -o ro none $state",
			want: "plugins: .*read-only|state: |agreement: registry: the registry is empty", why: "remount it",
			undo: "umount $state", pods: true},
		{name: "The state directory is full",
			inject: "mount -t tmpfs -o size=8k none $state; dd if=/dev/zero of=$state/other bs=8k count=1",
			want:   "plugins: .*no space|state: |agreement: registry: the registry is empty", why: "make room",
			undo: "umount $state", pods: true},
		{name: "A process keeps the lock of the registry",
			inject: "flock --no-fork $state sleep 600 & echo $! >/root/holder; sleep 1",
			want:   "state: .*a process keeps the lock", cure: "~kill -9 \\d+"},
		{name: "A pod has ended without a DEL", inject: "pod add new >/dev/null; ip netns del new; late",
			want: "agreement: .*no namespace has the address|leftovers: .*the link of this rule is gone", unfixed: true,
			why:  "two runs of `cni-tool registry-gc`, at least a minute apart",
			undo: "cni-tool registry-gc --free-after=15m; sleep 61; cni-tool registry-gc --free-after=15m"},
	}},
	{"EC2 and the metadata service", []fault{
		{name: "EC2 cannot be reached",
			inject: "export AWS_ENDPOINT_URL_EC2=http://127.0.0.1:1 && cni-tool registry-gc --free-after=1ms",
			want:   "does not reach EC2|could not be made|EC2: no answer|refusals: .*ADDs fail", pods: true,
			why:  "what is in the way: the hint names the endpoint, and says why the program uses it",
			undo: "export AWS_ENDPOINT_URL_EC2=http://127.0.0.1:8773; pod add new; pod del new"},
		{name: "The metadata service cannot be reached", inject: "ip route add blackhole 169.254.169.254",
			want: "metadata",
			why:  "what is in the way; pods that find a free address start",
			undo: "ip route del blackhole 169.254.169.254", pods: true},
		{name: "The instance has as many pods as its type allows",
			inject: "for i in $(seq 18); do pod add full$i; done",
			want:   "refusals: .*ADDs fail", pods: true,
			why: "fewer pods on the node (`cni-tool maxpods`), prefixes, or a larger type, as the error says",
			undo: "for i in $(seq 18); do pod del full$i; ip netns del full$i; done; sleep 61; pod add new; pod del " +
				"new"},
		{name: "Another program unassigns a pod's address",
			inject: "ec2 UnassignPrivateIpAddresses NetworkInterfaceId=$(eni till) PrivateIpAddress.1=$(addr till)",
			want:   "agreement: .*default/till", why: "delete the pod. `cni-tool registry-gc` then removes the address",
			undo: "renew till; cni-tool registry-gc --free-after=15m"},
		{name: "Another program detaches an ENI that serves pods",
			inject: "ec2 DetachNetworkInterface Force=true AttachmentId=$(attachment); sleep 2",
			want: "agreement: .*pods on it have lost their network|leftovers: .*no such device|answers: .*could not " +
				"be made|links: |iam: .*were not checked",
			why: "delete the pods on it. `cni-tool registry-gc` deletes the ENI when its addresses have been free " +
				"for `--free-after`",
			undo: "renew cart; renew till; sleep 61; cni-tool registry-gc --free-after=1s"},
	}},
	{"The installation", []fault{
		{name: "The plugin that asks EC2 is missing", inject: "mv $bin/cni-ipvlan-vpc-k8s-grow $bin/away",
			want: "plugins: .*cni-ipvlan-vpc-k8s-grow", why: "install it",
			undo: "mv $bin/away $bin/cni-ipvlan-vpc-k8s-grow"},
		{name: "The plugin is missing", inject: "mv $bin/cni-ipvlan-vpc-k8s $bin/away", want: "plugins: .*there is no",
			why: "install it", undo: "mv $bin/away $bin/cni-ipvlan-vpc-k8s", pods: true},
		{name: "A key of the conflist has a typing mistake", inject: "sed -i s/subnetTags/subnetTag/ $conf",
			want: "config: .*did you mean subnetTags", why: "correct the file", undo: "cp /root/good.conflist $conf"},
		{name: "hostInterface is a word for install",
			inject: "sed -i 's/\"hostInterface\": \"eth0\"/\"hostInterface\": \"auto\"/' $conf", want: "auto",
			why: "correct the file", undo: "cp /root/good.conflist $conf", pods: true},
		{name: "A security group does not exist", inject: "sed -i s/sg-1234/sg-9999/ $conf",
			why: "EC2 reads the groups when it creates an ENI, and the error of that ADD names the group: the node's " +
				"role may not describe groups", undo: "cp /root/good.conflist $conf"},
		{name: "A file of another plugin sorts first",
			inject: "echo '{\"cniVersion\": \"1.0.0\", \"name\": \"x\", \"plugins\": [{\"type\": \"ptp\"}]}' " +
				">/etc/cni/net.d/00-x.conflist",
			want: "config: .*read only the first file", why: "remove the file",
			undo: "rm /etc/cni/net.d/00-x.conflist"},
	}},
}
