// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package tool_test

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/nl"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/registry"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/sim/simtest"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/tool"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/tool/bundle"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/tool/bundle/page"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/tool/doctor"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/tool/view"
)

// A sickNode is a node with pods and faults. It has secrets in all places where a node may have secrets.
type sickNode struct {
	*simtest.Node
	dir     string // directory of the node's files
	secrets map[string]string
}

// secret records a secret that must not leave the node, and returns its text.
func (n *sickNode) secret(where, text string) string {
	if n.secrets[text] != "" {
		n.Fatalf("the secret of %s is also that of %s", where, n.secrets[text])
	}
	n.secrets[text] = where
	return text
}

// write writes a file below the node's directory, and returns its path.
func (n *sickNode) write(name, text string, mode os.FileMode) string {
	file := filepath.Join(n.dir, name)
	if err := errors.Join(os.MkdirAll(filepath.Dir(file), 0o755), os.WriteFile(file, []byte(text), mode)); err != nil {
		n.Fatal(err)
	}
	return file
}

// tool runs a command of the tool, and returns its output.
func (n *sickNode) tool(args ...string) (string, error) {
	var out bytes.Buffer
	err := tool.New(&out).RunContext(context.Background(), append([]string{tool.Name}, args...))
	return out.String(), err
}

// must runs a command of the tool. The command must not fail.
func (n *sickNode) must(args ...string) {
	if out, err := n.tool(args...); err != nil {
		n.Fatalf("%v: %s: %v", args, out, err)
	}
}

func (n *sickNode) run(program string, args ...string) {
	if out, err := exec.Command(program, args...).CombinedOutput(); err != nil {
		n.Fatalf("%s %v: %v: %s", program, args, err, out)
	}
}

// newNode makes a node with an empty registry.
func newNode(t *testing.T) *sickNode {
	n := &sickNode{Node: launched(t, vpc(), asRecorded, t.Setenv), dir: t.TempDir(), secrets: map[string]string{}}
	n.metadata()
	return n
}

// newSickNode makes a node with faults and secrets. The state of the registry, the kernel and EC2 comes from real
// commands and calls.
func newSickNode(t *testing.T) *sickNode {
	n := newNode(t)
	n.environment()
	n.conflists()
	n.create()
	n.pods()
	n.faults()
	n.others()
	n.journal()
	return n
}

// metadata serves the metadata of the node, and user data with a secret. No program may ask for the user data.
func (n *sickNode) metadata() {
	metadata, userData := n.Metadata(), n.secret("user data", "#!/bin/sh kubeadm join --token h4xx0r.ud01secret")
	url := simtest.Serve(n, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if strings.HasSuffix(r.URL.Path, "/user-data") {
			n.Errorf("a program has asked for the user data")
			fmt.Fprint(w, userData)
			return
		}
		metadata.ServeHTTP(w, r)
	}))
	n.Setenv("AWS_EC2_METADATA_SERVICE_ENDPOINT", url)
}

// environment puts secrets into the environment of the tool, and into the environment of a container runtime.
func (n *sickNode) environment() {
	n.Setenv("AWS_ACCESS_KEY_ID", n.secret("environment", "AKIAIOSFODNN7ENV02XY"))
	n.Setenv("AWS_SECRET_ACCESS_KEY", n.secret("environment", "wJalrXUtnFEMI/K7MDENG/bPxRfiEnv03Key"))
	n.Setenv("AWS_SESSION_TOKEN", n.secret("environment", "FwoGZXIvYXdzEnv04Token//////////wEaDA=="))
	n.Setenv("DATABASE_URL", "postgres://app:"+n.secret("environment", "pgpassenv05")+"@db.example.com/app")
	n.Setenv("HTTPS_PROXY", "http://proxy:"+n.secret("environment", "proxypassenv06")+"@proxy.example.com:3128")
	n.Setenv("VAULT_TOKEN", n.secret("environment", "correcthorseenvseven"))
	sleep, err := exec.LookPath("sleep")
	if err != nil {
		n.Fatal(err)
	}
	text, err := os.ReadFile(sleep)
	if err != nil {
		n.Fatal(err)
	}
	c := exec.Command(n.write("bin/containerd", string(text), 0o755), "1000")
	c.Env = []string{"HTTP_PROXY=http://u:" + n.secret("runtime", "rtproxypass08") + "@proxy.example.com",
		"AWS_CA_BUNDLE=/" + n.secret("runtime", "rt09-not-a-bundle"),
		"REGISTRY_TOKEN=" + n.secret("runtime", "rt10token"),
		"AWS_USE_FIPS_ENDPOINT=" + n.secret("runtime", "rtelevenfips")}
	if err := c.Start(); err != nil {
		n.Fatal(err)
	}
	n.Cleanup(func() { _ = c.Process.Kill(); _ = c.Wait() })
}

// conflists puts secrets into our conflist, and into other programs' files in the same directory.
func (n *sickNode) conflists() {
	n.write("net.d/10-pods.conflist", `{"cniVersion": "1.0.0", "name": "net", "x-note": "`+
		n.secret("list", "listkeysecret12")+`", "plugins": [
{"type": "cni-ipvlan-vpc-k8s", "interfaceIndex": 1, "subnetTags": {"kubernetes_kubelet": "true"},
 "secGroupIds": ["sg-1"], "hostInterface": "eth0", "containerInterface": "eth1", "ipMasq": true,
 "leaseLog": {"file": "`+filepath.Join(n.dir, "leases.log")+`", "maxSize": 10, "maxFiles": 3},
 "apiToken": "`+n.secret("our plugin, unknown key", "ourunknown13")+`",
 "eniTags": {"team": "`+n.secret("our plugin, eniTags", "enitagvalue14")+`"},
 "pools": {"batch": {"subnetTags": {"kubernetes_kubelet": "true"}, "namespaces": ["batch"],
   "secret": "`+n.secret("our plugin, in a pool", "poolunknown15")+`"}},
 "args": {"cni": {"password": "`+n.secret("args", "argspass16")+`"}},
 "runtimeConfig": {"io.kubernetes.cri.pod-annotations": {"vault/token": "`+n.secret("annotations", "annot17")+`"}},
 "prevResult": {"dns": {"domain": "`+n.secret("prevResult", "prevresult18")+`"}}},
{"type": "calico", "kubernetes": {"kubeconfig": "/etc/`+n.secret("foreign plugin", "calicokubeconfig19")+`",
   "k8s_auth_token": "`+n.secret("foreign plugin", "correcthorsecalicotwenty")+`"}},
{"type": "portmap", "snat": "`+n.secret("foreign plugin", "portmapsecret21")+`",
 "capabilities": {"portMappings": true}}]}`, 0o600)
	n.write("net.d/20-cilium.conflist", `{"cniVersion": "1.0.0", "name": "cilium", "plugins": [{"type": "cilium-cni",
"enable-debug": false, "etcd": {"password": "`+n.secret("foreign conflist", "ciliumetcd22")+`"}}]}`, 0o600)
	n.write("net.d/30-ours.conflist", `{"cniVersion": "1.0.0", "name": "third", "plugins": [
{"type": "cni-ipvlan-vpc-k8s", "secGroupIds": "`+n.secret("our plugin, wrong type", "wrongtype23")+`",
 "hostInterface": "eth0", "containerInterface": "eth1", "`+n.secret("our plugin, unknown key", "unknownkey24")+`": 1}]}`, 0o600)
	n.write("net.d/40-multus.conf", `{"type": "multus", "name": "multus", "kubeconfig": "/`+
		n.secret("multus", "multuskubeconfig25")+`", "delegates": [{"type": "bridge", "bridge": "`+
		n.secret("delegate", "bridgesecret26")+`"}]}`, 0o600)
	n.write("net.d/net/50-drop.conf", `{"type": "tuning", "sysctl": {"net.core.x": "`+
		n.secret("drop-in", "dropinsysctl27")+`"}}`, 0o600)
	n.write("net.d/calico-kubeconfig", "users:\n- user:\n    token: "+
		n.secret("kubeconfig", "eyJhbGciKube28.e30.abc")+"\n", 0o600)
	n.write("net.d/60-broken.conflist", `{"name": `+n.secret("broken conflist", "brokensecret29"), 0o600)
}

// create creates ENIs. Some of them have tags and descriptions that come from other programs.
func (n *sickNode) create() {
	n.must("new-interface", "--subnet_filter=kubernetes_kubelet=true", "--ip_batch_size", "6", "sg-1")
	n.Operate("CreateTags", "ResourceId.1", "eni-00000000000000002", "Tag.1.Key", "db",
		"Tag.1.Value", n.secret("tag of an ENI", "enitag30secret"),
		"Tag.2.Key", n.secret("key of a tag", "tagkey31secret"), "Tag.2.Value", "x",
		"ResourceId.2", "subnet-b", "Tag.3.Key", "owner",
		"Tag.3.Value", n.secret("tag of a subnet", "correcthorsesubnettag"))
	n.Operate("ModifyNetworkInterfaceAttribute", "NetworkInterfaceId", "eni-00000000000000002",
		"Description.Value", "CNI-ENI "+n.secret("description of an ENI", "descr33secret"))
}

// An aPod is a pod of the node. If the field on is not empty, the kernel has the pod's address.
type aPod struct {
	addr, namespace, name string
	age                   time.Duration
	on                    string // the link of the ENI; "": no namespace has the address
	reserved              bool
}

// lease leases an address to a pod, and writes the lease log, as an ADD does.
func (n *sickNode) lease(p aPod) {
	netns := p.namespace + "-" + p.name
	if p.on != "" {
		n.run("ip", "netns", "add", netns)
		n.run("ip", "link", "add", "link", p.on, "name", "slave", "netns", netns, "up", "type", "macvlan", "mode",
			"private")
		n.run("ip", "-n", netns, "addr", "add", p.addr+"/32", "dev", "slave")
	}
	n.Edit(func(s *registry.State) {
		s.UseLog("net", registry.LeaseLog{File: filepath.Join(n.dir, "leases.log"), MaxSize: 10, MaxFiles: 3})
		a := netip.MustParseAddr(p.addr)
		id, _ := s.ENIOf(a)
		if err := s.Reserve(a, registry.Lease{Key: registry.Key{Network: "net", Attachment: registry.Attachment{
			ContainerID: "c-" + p.name, IfName: "eth0"}}, ENI: id, PodNamespace: p.namespace, PodName: p.name,
			Bound: !p.reserved, NetNS: "/run/netns/" + netns, Since: time.Now().Add(-p.age)}); err != nil {
			n.Fatal(err)
		}
	})
}

// end ends the lease of a pod, and writes the lease log, as a DEL does.
func (n *sickNode) end(pod string) {
	n.Edit(func(s *registry.State) {
		s.EndOf(registry.Key{Network: "net", Attachment: registry.Attachment{ContainerID: "c-" + pod, IfName: "eth0"}},
			time.Now(), time.Time{})
	})
}

// pods leases addresses to pods. One pod has ended without a DEL, and EC2 has refused a call.
func (n *sickNode) pods() {
	n.lease(aPod{"10.0.1.5", "shop", "cart-0", time.Hour, "eth1", false})
	n.lease(aPod{"10.0.1.6", "shop", "checkout-7d9f8c6b5-x2x4z", 20 * time.Minute, "", false})
	n.lease(aPod{"10.0.1.7", "batch", "report-28391", 5 * time.Second, "", true})
	n.lease(aPod{"10.0.1.8", "shop", "gone-0", 40 * time.Minute, "", false})
	n.end("gone-0")
	n.Edit(func(s *registry.State) {
		now := time.Now()
		s.Refusals["AssignPrivateIpAddresses eni-00000000000000002"] = registry.Refusal{
			Code: "PrivateIpAddressLimitExceeded", Message: "Number of private addresses will exceed limit. " +
				"Authorization: " + n.secret("answer of EC2", "ec2message34"),
			Since: now.Add(-90 * time.Second), Until: now.Add(3 * time.Minute)}
		s.Failures["net/"] = registry.Failure{Text: "EC2 refuses AssignPrivateIpAddresses, token=" +
			n.secret("failure", "failure35token"),
			Hint:  "see https://x:" + n.secret("hint", "hint36pass") + "@example.com/",
			Since: now.Add(-80 * time.Second)}
	})
	n.spoil()
}

// spoil adds fields that this release does not know, to the registry and to the lease log. The log also gets a line
// that is no JSON.
func (n *sickNode) spoil() {
	file := filepath.Join(registry.Dir(), "registry.json")
	text, err := os.ReadFile(file)
	if err != nil {
		n.Fatal(err)
	}
	edited := strings.Replace(string(text), `"schema_version":1,`, `"schema_version":1,"laterRelease":{"apiKey":"`+
		n.secret("registry", "registrylater37")+`"},`, 1)
	edited = strings.Replace(edited, `"podName":"cart-0",`, `"podName":"cart-0","annotations":{"vault":"`+
		n.secret("annotations in a lease", "leaseannot38")+`"},`, 1)
	edited = strings.Replace(edited, `"mac":"`, `"password":"`+n.secret("ENI in the registry", "registryeni39")+
		`","mac":"`, 1)
	for _, planted := range []string{"registrylater37", "leaseannot38", "registryeni39"} {
		if !strings.Contains(edited, planted) {
			n.Fatalf("the registry has no place for %s: %s", planted, text)
		}
	}
	if err := os.WriteFile(file, []byte(edited), 0o600); err != nil {
		n.Fatal(err)
	}
	log, err := os.OpenFile(filepath.Join(n.dir, "leases.log"), os.O_APPEND|os.O_WRONLY, 0)
	if err != nil {
		n.Fatal(err)
	}
	defer log.Close()
	fmt.Fprintf(log, `{"time":"2026-01-01T00:00:00Z","event":"begin","address":"10.0.1.9","pod":"old","annotations":"%s"}`+
		"\nnot a line %s\n", n.secret("lease log", "logannot40"), n.secret("lease log", "logline41"))
}

// faults changes the kernel of the node. The checks must report each of these changes.
func (n *sickNode) faults() {
	n.run("ip", "rule", "add", "pref", "10001", "from", "10.0.1.6", "lookup", "10001")
	n.run("ip", "addr", "add", "10.0.1.7/32", "dev", "eth1")
	n.Cleanup(func() { _ = exec.Command("ip", "rule", "del", "pref", "10001").Run() })
}

// others puts secrets into kernel objects of other programs.
func (n *sickNode) others() {
	n.run("ip", "link", "add", "vpn0", "type", "veth", "peer", "vpn1")
	n.Cleanup(func() { _ = exec.Command("ip", "link", "del", "vpn0").Run() })
	n.run("ip", "link", "set", "vpn0", "alias", "psk "+n.secret("alias of a link", "aliaspsk42"))
	n.run("nft", "add table inet "+nl.OwnTable+"_net; add chain inet "+nl.OwnTable+"_net c; add rule inet "+nl.OwnTable+
		`_net c ip daddr 10.9.9.9 log prefix "`+n.secret("log prefix of nftables", "nftlog43")+`" counter comment "`+
		n.secret("comment of nftables", "nftcomment44")+`"`)
	n.run("nft", `add table ip foreign { comment "`+n.secret("table of others", "nfttable45")+`"; }`)
	n.Cleanup(func() {
		_ = exec.Command("nft", "delete table inet "+nl.OwnTable+"_net; delete table ip foreign").Run()
	})
}

// journal replaces journalctl. Its output has secrets in lines of our units and of other units.
func (n *sickNode) journal() {
	var text strings.Builder
	line := func(program, unit, message string) {
		fmt.Fprintf(&text, `{"__REALTIME_TIMESTAMP":"%d","PRIORITY":"4","SYSLOG_IDENTIFIER":"%s",`+
			`"_SYSTEMD_UNIT":"%s","MESSAGE":"%s","_CMDLINE":"tool --password cmdline46"}`+"\n",
			time.Now().Add(-time.Minute).UnixMicro(), program, unit, message)
	}
	n.secret("command line in the journal", "cmdline46")
	ours, gc := tool.Name, "cni-gc.service"
	line(ours, gc, tool.Name+": warning: EC2 did not list the ENIs of i-00000000000000001: RequestLimitExceeded")
	line(ours, gc, "the password is "+n.secret("journal", "correcthorsebattery"))
	line(ours, gc, "Authorization: Bearer "+n.secret("journal", "eyJhbGciOiJIUzI1NiJ9.jrnl48.sig"))
	line(ours, gc, "using key "+n.secret("journal", "AKIAIOSFODNN7JRNL49X"))
	line(ours, gc, "get https://admin:"+n.secret("journal", "jrnlurlpass50")+"@example.com/?sig="+
		n.secret("journal", "jrnlquery51"))
	line(ours, gc, "DB_PASSWORD="+n.secret("journal", "jrnlenvvalue")+" was set")
	line(ours, gc, "-----BEGIN PRIVATE KEY----- "+n.secret("journal", "MIIEvQIBADANBgkqhkiG53"))
	line("operator-hook", gc, n.secret("line of a program of others", "hookline"))
	line(ours, "sshd.service", n.secret("line of a unit of others", "sshdline"))
	n.write("journal.json", text.String(), 0o600)
	n.write("bin/journalctl", "#!/bin/sh\ncat "+filepath.Join(n.dir, "journal.json")+"\n", 0o755)
	n.Setenv("PATH", filepath.Join(n.dir, "bin")+":"+os.Getenv("PATH"))
}

// contents returns the contents of all files of a bundle.
func contents(t *testing.T, file string) string {
	t.Helper()
	f, err := os.Open(file)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	z, err := gzip.NewReader(f)
	if err != nil {
		t.Fatal(err)
	}
	var all strings.Builder
	for r := tar.NewReader(z); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			return all.String()
		}
		if err != nil {
			t.Fatal(err)
		}
		fmt.Fprintln(&all, "==", h.Name)
		if _, err := io.Copy(&all, r); err != nil {
			t.Fatal(err)
		}
	}
}

// TestSupportBundle makes a bundle of a sick node. Neither the bundle nor its page may have a planted secret. With the
// bundle's data, the checks must find the same faults as on the node.
func TestSupportBundle(t *testing.T) {
	n := newSickNode(t)
	file := filepath.Join(n.dir, "bundle.tar.gz")
	if _, err := n.tool("support-bundle", "--config", filepath.Join(n.dir, "net.d"), "--bin-dir", n.dir, "-o",
		file); err != nil {
		t.Fatal(err)
	}
	text := contents(t, file)
	html, err := n.tool("support-bundle", "--read", file, "--html", filepath.Join(n.dir, "page.html"))
	if err != nil {
		t.Error(err)
	}
	pageText, err := os.ReadFile(filepath.Join(n.dir, "page.html"))
	if err != nil {
		t.Fatal(err)
	}
	const fewest = 40
	if len(n.secrets) < fewest {
		t.Errorf("only %d secrets were planted", len(n.secrets))
	}
	for secret, where := range n.secrets {
		for what, in := range map[string]string{"bundle": text, "answer": html, "page": string(pageText)} {
			if i := strings.Index(in, secret); i >= 0 {
				t.Errorf("the %s has the secret of %s: %q", what, where, in[max(0, i-120):min(len(in), i+80)])
			}
		}
	}
	for _, want := range []string{"checkout-7d9f8c6b5-x2x4z", "10.0.1.6", "RequestLimitExceeded",
		"PrivateIpAddressLimitExceeded", `"type":"calico"`, `"interfaceIndex":1`, "kubernetes_kubelet", "10001",
		nl.OwnTable + "_net"} {
		if !strings.Contains(text, want) {
			t.Errorf("the bundle lacks %q", want)
		}
	}
	n.sameFindings(file)
	if t.Failed() {
		t.Log(text)
	}
}

// sameFindings checks that the checks find the same faults with a bundle's data as on the node. Only a check that needs
// the node, entirely or in part, may find less in the bundle.
func (n *sickNode) sameFindings(file string) {
	f, err := os.Open(file)
	if err != nil {
		n.Fatal(err)
	}
	defer f.Close()
	b, err := bundle.Read(f)
	if err != nil {
		n.Fatal(err)
	}
	r := page.ReviewOf(n.Context(), b)
	unmade := map[string]bool{}
	for _, u := range r.Unmade {
		if unmade[u.Check] = true; strings.Contains(u.Why, doctor.ErrSenseless.Error()) {
			n.Errorf("the check %s needs what a bundle does not have: %s", u.Check, u.Why)
		}
	}
	for _, f := range r.Node {
		if !unmade[f.Check] {
			n.Errorf("only the node has found: %+v", f)
		}
	}
	made := map[string]bool{}
	for _, f := range r.Findings {
		made[f.Check] = true
	}
	for _, f := range b.Findings.Missing(r.Report) {
		n.Errorf("only the bundle shows: %+v", f)
	}
	for _, check := range []string{"agreement", "addresses", "rules", "refusals"} {
		if !made[check] {
			n.Errorf("the check %s finds nothing in the bundle", check)
		}
	}
}

// example makes a node whose page shows all kinds of cells, a dispute and a timeline.
func (n *sickNode) example() {
	n.write("net.d/10-pods.conflist", `{"cniVersion": "1.0.0", "name": "net", "plugins": [
{"type": "cni-ipvlan-vpc-k8s", "interfaceIndex": 1, "subnetTags": {"kubernetes_kubelet": "true"}, "reuseIPWait": 300,
 "dataPath": "veth", "secGroupIds": ["sg-1"], "hostInterface": "eth0", "containerInterface": "eth1", "ipMasq": true,
 "leaseLog": {"file": "`+filepath.Join(n.dir, "leases.log")+`", "maxSize": 10, "maxFiles": 3}}]}`, 0o600)
	for range 2 {
		n.must("new-interface", "--subnet_filter=kubernetes_kubelet=true", "--ip_batch_size", "5", "sg-1")
	}
	n.Operate("AssignPrivateIpAddresses", "NetworkInterfaceId", "eni-00000000000000003", "Ipv4PrefixCount", "1")
	n.must("registry-gc", "--free-after=15m", "--config", filepath.Join(n.dir, "net.d"))
	n.set("net.ipv4.ip_forward", "1")
	n.set("net.ipv4.conf.all.send_redirects", "0")
	n.set("net.ipv4.conf.eth0.rp_filter", "2")
	var free []string
	n.Edit(func(s *registry.State) {
		free = nil
		for _, e := range s.ENIs {
			for _, p := range e.Prefixes {
				for a := p.CIDR.Addr(); p.CIDR.Contains(a); a = a.Next() {
					free = append(free, a.String())
				}
			}
		}
	})
	pods := []aPod{
		{"10.0.1.4", "shop", "cart-0", 9 * time.Hour, "eth1", false},
		{"10.0.1.5", "shop", "cart-1", 9 * time.Hour, "eth1", false},
		{"10.0.1.6", "shop", "checkout-7d9f8c6b5-x2x4z", 3 * time.Hour, "eth1", false},
		{"10.0.1.7", "shop", "search-5b8d-9mq2k", 2 * time.Hour, "", false},
		{"10.0.1.8", "batch", "report-28391", 40 * time.Second, "", true},
		{free[0], "monitoring", "prometheus-0", 26 * time.Hour, "eth2", false},
		{free[1], "monitoring", "alertmanager-0", 26 * time.Hour, "eth2", false},
		{free[2], "shop", "payments-6c4b7-fj8zt", 80 * time.Minute, "eth2", false},
		{free[3], "batch", "report-28390", 70 * time.Minute, "", false},
		{free[5], "batch", "import-11", 70 * time.Minute, "", false},
		{free[6], "ingress", "envoy-x7k2p", 5 * time.Hour, "eth2", false},
	}
	for i, p := range pods {
		n.lease(p)
		pair := fmt.Sprintf("veth%04x", 0x9d10+i)
		n.run("ip", "link", "add", pair, "group", fmt.Sprint(nl.RoutedGroup(1)), "up", "type", "veth", "peer",
			"name", fmt.Sprintf("p%d", i))
		n.run("ip", "link", "set", pair, "alias", "cni-ipvlan-vpc-k8s net c-"+p.name+" eth0 "+p.namespace+"/"+p.name)
		n.Cleanup(func() { _ = exec.Command("ip", "link", "del", pair).Run() })
	}
	n.must("repair", "--config", filepath.Join(n.dir, "net.d"))
	n.Cleanup(func() {
		_ = exec.Command("nft", "flush", "ruleset").Run()
		for exec.Command("ip", "rule", "del", "protocol", "72").Run() == nil {
		}
	})
	n.end("report-28390")
	n.end("import-11")
	n.run("ip", "link", "del", fmt.Sprintf("veth%04x", 0x9d10+8))
	n.run("ip", "link", "del", fmt.Sprintf("veth%04x", 0x9d10+9))
	n.Operate("UnassignPrivateIpAddresses", "NetworkInterfaceId", "eni-00000000000000002",
		"PrivateIpAddress.1", "10.0.1.5")
	n.run("ip", "rule", "add", "pref", "10001", "from", "10.0.1.6", "lookup", "10001")
	n.Cleanup(func() { _ = exec.Command("ip", "rule", "del", "pref", "10001").Run() })
	n.refuse()
	n.past(pods)
	// This is the state after a lease log was replaced.
	n.Edit((*registry.State).CheckLog)
	if err := view.MarkCollected(); err != nil {
		n.Fatal(err)
	}
}

// set sets a sysctl until the test ends, because all tests share the namespace.
func (n *sickNode) set(key, value string) {
	was, err := exec.Command("sysctl", "-n", key).Output()
	if err != nil {
		n.Fatal(err)
	}
	n.run("sysctl", "-qw", key+"="+value)
	n.Cleanup(func() { _ = exec.Command("sysctl", "-qw", key+"="+strings.TrimSpace(string(was))).Run() })
}

// refuse records refusals by EC2, as growth does.
func (n *sickNode) refuse() {
	n.Edit(func(s *registry.State) {
		now := time.Now()
		s.Refusals["CreateNetworkInterface subnet-b"] = registry.Refusal{Code: "InsufficientFreeAddressesInSubnet",
			Message: "There are not enough free addresses in subnet 'subnet-b' to satisfy the requested number of " +
				"instances.",
			Since: now.Add(-4 * time.Minute), Until: now.Add(50 * time.Second)}
		s.NotBefore["AssignPrivateIpAddresses"] = now.Add(6 * time.Second)
		s.Failures["net/"] = registry.Failure{Text: "no subnet of the pool has room: subnet-b is full",
			Hint:  "add another subnet for pods to the VPC, with the tags in subnetTags",
			Since: now.Add(-3 * time.Minute)}
	})
}

// past writes the lease log of a day. The last lines of the log are about the pods that exist now.
func (n *sickNode) past(pods []aPod) {
	var lines []registry.Line
	now, number := time.Now().UTC(), 0
	add := func(event, addr, namespace, name string, ago time.Duration) {
		number++
		lines = append(lines, registry.Line{Time: now.Add(-ago), Event: event, Series: "1x", Number: number,
			Address: netip.MustParseAddr(addr), Network: "net", Namespace: namespace, Pod: name,
			ENI: "eni-00000000000000002"})
	}
	for i := range 40 {
		ago := time.Duration(26*60-i*38) * time.Minute
		addr, name := fmt.Sprintf("10.0.1.%d", 20+i%9), fmt.Sprintf("report-%d", 28300+i)
		add(registry.Begin, addr, "batch", name, ago)
		add(registry.End, addr, "batch", name, ago-time.Duration(10+i*7%50)*time.Minute)
	}
	for _, p := range pods {
		add(registry.Begin, p.addr, p.namespace, p.name, p.age)
	}
	add(registry.End, pods[8].addr, "batch", "report-28390", 30*time.Second)
	var text bytes.Buffer
	for _, l := range lines {
		if err := json.NewEncoder(&text).Encode(l); err != nil {
			n.Fatal(err)
		}
	}
	n.write("leases.log", text.String(), 0o600)
}

// TestSupportBundlePage makes the page of a node. The page has all kinds of cells, except unconfirmed addresses. If
// SUPPORT_BUNDLE_PAGE is set, the test keeps the page in this directory, for the picture in the docs.
func TestSupportBundlePage(t *testing.T) {
	n := newNode(t)
	n.example()
	file, bin := filepath.Join(n.dir, "bundle.tar.gz"), n.dir
	if kept := os.Getenv("SUPPORT_BUNDLE_BIN"); kept != "" {
		bin = kept // this directory has the plugins, so no finding says that plugins are missing
	}
	if _, err := n.tool("support-bundle", "--config", filepath.Join(n.dir, "net.d"), "--bin-dir", bin, "-o",
		file); err != nil {
		t.Fatal(err)
	}
	html, err := n.tool("support-bundle", "--read", file, "--html", "-")
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		`aria-label="10.0.1.4, leased by shop/cart-0"`, `aria-label="10.0.1.5, leased by shop/cart-1; the sources disagree`,
		`aria-label="10.0.1.8, reserved by batch/report-28391"`, `, cooling until `, `aria-label="10.0.0.10, node"`,
		`, free"`, `id="a-10-0-1-4"`, "veth9d10", "does not have it", "InsufficientFreeAddressesInSubnet",
		`class="m-refused"`, `class="m-begin"`, `class="m-end"`,
	} {
		if !strings.Contains(html, want) {
			t.Errorf("the page lacks %q", want)
		}
	}
	if dir := os.Getenv("SUPPORT_BUNDLE_PAGE"); dir != "" {
		if err := os.WriteFile(filepath.Join(dir, "page.html"), []byte(html), 0o644); err != nil {
			t.Fatal(err)
		}
	}
}
