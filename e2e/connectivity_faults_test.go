// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package e2e

import (
	"cmp"
	"fmt"
	"net/netip"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/nl"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/nl/nltest"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/sim/kubeproxy"
)

// A tryFault is a fault, and the report that connectivity-test must give of it.
type tryFault struct {
	name   string
	during string // commands on the node after the ADD of each pod, with the pod's link in $veth and address in $addr
	before string // commands on the node, before the test
	fabric string // commands in the namespace between the instances
	undo   string // commands on the node that end the fault
	only   string // the only mode in which the fault is made
	path   string // the path that must fail
	want   string // a regular expression for the report about path
	others string // a regular expression for other paths that may fail
	args   []string
	change func(w *tryWorld) (undo func())
	stays  bool // the node does not work after the fault
}

const toOthers = `pod to|peer|node to pod`

var tryFaults = []tryFault{
	{name: "a firewall flushes our table", only: "ipvlan", during: "nft delete table inet cni_ipvlan_vpc_k8s",
		path: "pod to internet", want: `network is missing: .*nft.*cni-ipvlan-vpc-k8s-tool repair`, others: `pod to`},
	{name: "the routes to the pod are lost", during: "ip route del $addr/32; ip route del $addr/32", path: "node " +
		"to pod",
		want: `network is missing: .*ip route .*repair`, others: toOthers},
	{name: "the pod's rule is lost", only: "ipvlan", during: "ip rule del iif $veth", path: "pod to Service",
		want: `(rule|chain) .*repair`, others: `pod to DNS`},
	{name: "the ENI's rule is lost", only: byPair, during: "while ip rule del pref 1018 2>/dev/null; do :; done",
		path: "pod to peer's pod",
		want: `network is missing: .*ip rule add .*repair`, others: `pod to|peer`},
	{name: "the kernel checks sources strictly, without marks", only: byPair, during: "sysctl -w " +
		"net.ipv4.conf.eth1.rp_filter=1 net.ipv4.conf.eth1.src_valid_mark=0",
		path: "pod to peer's pod", want: `the answer reached the node by eth1.*rp_filter`,
		others: `pod to|peer`},
	{name: "the pod's pair is deleted", during: "ip link del $veth", path: "pod to internet",
		want: `network is missing`, others: toOthers},
	{name: "forwarding is off", during: "sysctl -w net.ipv4.ip_forward=0", path: "pod to internet", want: `ip_forward`,
		others: toOthers, undo: "sysctl -w net.ipv4.ip_forward=1"},
	{name: "an ENI's link is down", during: "ip link set eth1 down", path: "pod to Service", want: `the link eth1 ` +
		`is down`,
		others: `.`, undo: "ip link set eth1 up"},
	{name: "a rule of a firewall drops what the node forwards",
		before: "nft add table inet f; nft add chain inet f forward '{ type filter hook forward priority 0; " +
			"policy accept; }'; " +
			"nft add rule inet f forward ip daddr 203.0.113.1 drop",
		path: "pod to internet", want: `reached the node by veth.* the rule with the handle \d+ of the chain ` +
			`forward of the table inet f drops the packet.*nft --handle list chain inet f forward`,
		undo: "nft delete table inet f"},
	{name: "a firewall drops what the node forwards", before: "nft add table ip f; " +
		"nft add chain ip f forward '{ type filter hook forward priority 0; policy drop; }'",
		path: "pod to internet", want: `the policy of the chain forward of the table ip f drops the packet`,
		others: `pod to|peer`,
		undo:   "nft delete table ip f"},
	{name: "a firewall drops what comes to the node", before: "nft add table ip f; nft add chain ip f input '{ " +
		"type filter " +
		"hook input priority 0; policy accept; }'; nft add rule ip f input tcp dport 10250 drop",
		path: "pod to node", want: `chain input of the table ip f drops the packet`, undo: "nft delete table ip f"},
	{name: "a firewall keeps the node from metadata", before: "nft add table ip f; nft add chain ip f output '{ type " +
		"filter hook output priority 0; policy accept; }'; nft add rule ip f output ip daddr 169.254.169.254 drop",
		path: "node to metadata", want: `chain output of the table ip f drops the packet`,
		undo: "nft delete table ip f"},
	{name: "metadata is off", fabric: "nft add table ip sg; nft add chain ip sg input '{ type filter hook input " +
		"priority 0; }'; " +
		"nft add rule ip sg input ip daddr 169.254.169.254 drop",
		path: "node to metadata", want: `left the node by eth0, and no answer came.*HttpEndpoint`},
	{name: "a security group denies", fabric: "nft add table inet sg; nft add chain inet sg forward '{ type " +
		"filter hook forward " +
		"priority 0; }'; nft add rule inet sg forward tcp dport 7472 drop",
		path: "node to peer's node", want: `left the node by eth0, and no answer came.*security groups`,
		others: `peer`},
	{name: "a security group denies what others send to the pod", fabric: "nft add table inet sg; nft add chain " +
		"inet sg forward '{ " +
		"type filter hook forward priority 0; }'; nft add rule inet sg forward tcp dport '!=' '{ 53, 80, 8080, " +
		"7472 }' " +
		"tcp flags syn / syn,ack drop", path: "peer's pod to pod", want: `security groups`},
	{name: "EC2's source check: the address is gone", during: `eni=$("$DIR/cni-ipvlan-vpc-k8s-tool" status -o ` +
		`json --config "$DIR" | ` +
		`jq -r ".addresses[] | select(.ip == \"$addr\").eni"); curl -sS "$AWS_ENDPOINT_URL_EC2" -d ` +
		`Version=2016-11-15 ` +
		`-d Action=UnassignPrivateIpAddresses -d NetworkInterfaceId="$eni" -d PrivateIpAddress.1="$addr"`,
		path: "pod to Service", want: `no ENI of this instance has the address .*status --diff`,
		others: toOthers, stays: true},
	{name: "the DNS server is silent", fabric: "nft add table ip sg; nft add chain ip sg forward '{ type filter " +
		"hook forward " +
		"priority 0; }'; nft add rule ip sg forward udp dport 53 drop",
		path: "pod to DNS", want: `left the .* by eth[01].*port 53`},
	{name: "a Service without endpoints", args: []string{"--service", "empty"}, path: "pod to Service",
		want: `kube-proxy refuses the packet.*no ready endpoints`},
	{name: "the internet does not answer", fabric: "nft add table ip sg; nft add chain ip sg forward '{ type " +
		"filter hook forward " +
		"priority 0; }'; nft add rule ip sg forward ip daddr 203.0.113.1 drop",
		path: "pod to internet", want: `left the node by eth0, and no answer came.*NAT gateway`},
	{name: "a smaller MTU on the way, and no ICMP", change: smallerMTU, path: "pod to peer's pod",
		want: `large ones are lost.*MTU`, others: `peer`},
	{name: "the subnets are full", args: []string{"--namespace", "empty"}, change: fullSubnets, path: "ADD",
		want: `subnet is full: no subnet .* has free addresses`},
}

// smallerMTU makes the wire to the other node carry only small packets. The sender of a larger packet gets no error
// message.
func smallerMTU(w *tryWorld) (undo func()) {
	var links []string
	for _, e := range w.Nodes[1].ENIs() {
		links = append(links, "eni-"+e.ID[len(e.ID)-8:])
	}
	run := func(script string) {
		_ = w.fabric.Do(func() error { return exec.Command("sh", "-c", script).Run() })
	}
	for _, l := range links {
		run("ip link set " + l + " mtu 1400")
	}
	run("nft add table inet sg; nft add chain inet sg output '{ type filter hook output priority 0; }'; " +
		"nft add rule inet sg output icmp type destination-unreachable drop; nft add rule inet sg output icmpv6 " +
		"type packet-too-big drop")
	return func() {
		for _, l := range links {
			run("ip link set " + l + " mtu 9001")
		}
	}
}

func fullSubnets(w *tryWorld) (undo func()) {
	const action = "CreateNetworkInterface"
	w.EC2.Fail(action, "InsufficientFreeAddressesInSubnet", -1)
	return func() { w.EC2.Fail(action, "InsufficientFreeAddressesInSubnet", 0) }
}

// tryPart is the part of the page about connectivity-test, and tryHead is the head of its table.
const (
	tryPart = "Paths of new pods"
	tryHead = "| fault | data path | path | where it stopped | cause | what to do |\n|---|---|---|---|---|---|\n"
)

// TestConnectivityFaults makes faults. Only the paths that a fault breaks may fail, and the output must name the cause.
// After all faults that the test can end, all paths must work again. With -faults, the test writes its part of the
// page. Otherwise it makes a quarter of the faults in each of the two modes.
func TestConnectivityFaults(t *testing.T) {
	nltest.Need(t, "root", "nftables", "owner")
	rows := make([]string, len(tryFaults))
	for k, m := range tryModes {
		t.Run(m.name, func(t *testing.T) {
			w := newTryWorld(t, m)
			w.try(t, "")
			for _, stay := range []bool{false, true} {
				for i, f := range tryFaults {
					if f.stays == stay && (f.only == "" || f.only == m.name) && (*allFaults || i%4 == 2*k) {
						t.Run(strings.ReplaceAll(f.name, " ", "_"), func(t *testing.T) { rows[i] = w.fault(t, f) })
					}
				}
				if failed, _ := w.try(t, ""); !stay && len(failed) > 0 {
					t.Errorf("after all faults that end: %v", failed)
				}
			}
		})
	}
	if *allFaults && !t.Failed() {
		writeFaults(t, tryPart, tryHead+strings.Join(rows, ""))
	}
}

// fault makes a fault, checks the output, and returns the row for the page.
func (w *tryWorld) fault(t *testing.T, f tryFault) (line string) {
	t.Helper()
	if f.change != nil {
		defer f.change(w)()
	}
	if f.fabric != "" || f.change != nil {
		defer nltest.Shell(t, w.fabric, "nft delete table inet sg 2>/dev/null || nft delete table ip sg "+
			"2>/dev/null || true")
	}
	for n, script := range map[*nl.NS]string{w.fabric: f.fabric, w.node.NS: f.before} {
		nltest.Shell(t, n, script)
	}
	for i, a := range f.args {
		if at := slices.IndexFunc(kubeproxy.Services(),
			func(s kubeproxy.Service) bool { return s.Name == a }); at >= 0 && f.args[0] == "--service" {
			s := kubeproxy.Services()[at]
			f.args[i] = netip.AddrPortFrom(s.ClusterIP.V4, s.Port).String()
		}
	}
	failed, _ := w.try(t, f.during, f.args...)
	for _, r := range failed {
		text := oneSpace(r.Stopped + " " + r.Cause + " " + r.Do)
		if r.Path == f.path && regexp.MustCompile(f.want).MatchString(text) {
			line = f.line(r)
		} else if f.others == "" || !regexp.MustCompile(f.others).MatchString(r.Path) {
			t.Errorf("fails, too: %s", r)
		}
	}
	if line == "" {
		t.Errorf("want %s: %s: got %v", f.path, f.want, failed)
	}
	nltest.Shell(t, w.node.NS, f.undo)
	return line
}

func (f tryFault) line(r tryRow) string {
	text := ""
	for _, cell := range []string{f.name, cmp.Or(f.only, "both"), r.Path, r.Stopped, r.Cause, r.Do} {
		text += "| " + strings.ReplaceAll(cmp.Or(oneSpace(cell), "–"), "|", `\|`) + " "
	}
	return addressOrName.ReplaceAllString(text, "…") + "|\n"
}

// addressOrName matches parts of the output that differ in each run.
var addressOrName = regexp.MustCompile(`veth[0-9a-f]{11}|connectivity-test-\d+-\w|` +
	`eni-0[0-9a-f]+|\d+\.\d+\.\d+\.\d+|\b[0-9a-f]+:[0-9a-f:]+\b`)

// healthyRuns: with -faults, TestHealthy runs each program this often on the idle node, and as often on the loaded
// node.
const healthyRuns = 50

// TestHealthy runs doctor and connectivity-test on a healthy node. At first the node is idle, then it is loaded with
// four processes for each CPU. The two programs must not report a fault. With -faults, the test writes its part of the
// page. Otherwise it runs each program once on the idle node, and once on the loaded node.
func TestHealthy(t *testing.T) {
	nltest.Need(t, "root", "ipvlan", "nftables", "owner")
	n, runs, rows := newFaultNode(t), 1, ""
	n.run(`sed -i 's/"subnetTags"/"reuseIPWait": 0, &/' $conf`) // only the test adds so many pods, one after the other
	if *allFaults {
		runs = healthyRuns
	}
	for _, node := range []string{"idle", "loaded"} {
		if node == "loaded" {
			n.run("for i in $(seq $((4*$(nproc)))); do timeout 1800 sh -c 'while :; do :; done' & load+=($!); done")
		}
		found, failed := 0, 0
		for range runs {
			for _, f := range n.doctor("") {
				t.Errorf("%s: doctor: %s", node, f)
				found++
			}
			if out, status := n.run("cni-tool connectivity-test --within=5m"); status != 0 {
				t.Errorf("%s: connectivity-test: %s\n%s", node, out, n.messages())
				failed++
			}
		}
		rows += fmt.Sprintf("| %s | %d | %d | %d |\n", node, runs, found, failed)
	}
	n.run(`kill "${load[@]}"`)
	if *allFaults {
		writeFaults(t, "A healthy node", "| node | runs | findings of `doctor` | runs in which a path fails |\n"+
			"|---|---|---|---|\n"+rows)
	}
}
