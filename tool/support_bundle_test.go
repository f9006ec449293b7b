// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package tool_test

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/nl"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/registry"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/sim/ec2sim"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/tool"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/tool/bundle"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/tool/bundle/page"
)

// A sickNode is a node with pods and faults, and with secrets wherever a node may have some.
type sickNode struct {
	*testing.T
	dir     string
	ec2     string // where EC2 is
	secrets map[string]string
}

// secret plants a secret: it returns the text, which must not leave the node.
func (n *sickNode) secret(where, text string) string {
	if n.secrets[text] != "" {
		n.Fatalf("the secret of %s is also that of %s", where, n.secrets[text])
	}
	n.secrets[text] = where
	return text
}

// write writes a file below the directory of the node.
func (n *sickNode) write(name, text string, mode os.FileMode) string {
	file := filepath.Join(n.dir, name)
	if err := errors.Join(os.MkdirAll(filepath.Dir(file), 0o755), os.WriteFile(file, []byte(text), mode)); err != nil {
		n.Fatal(err)
	}
	return file
}

// tool runs a command of the tool, and returns what it answers.
func (n *sickNode) tool(args ...string) (string, error) {
	var out bytes.Buffer
	err := tool.New(&out).RunContext(context.Background(), append([]string{tool.Name}, args...))
	return out.String(), err
}

func (n *sickNode) run(program string, args ...string) {
	if out, err := exec.Command(program, args...).CombinedOutput(); err != nil {
		n.Fatalf("%s %v: %v: %s", program, args, err, out)
	}
}

// call makes an EC2 call as an operator does.
func (n *sickNode) call(action string, form url.Values) {
	form.Set("Action", action)
	form.Set("Version", "2016-11-15")
	answer, err := http.PostForm(n.ec2, form)
	if err != nil {
		n.Fatal(err)
	}
	defer answer.Body.Close()
	if text, _ := io.ReadAll(answer.Body); answer.StatusCode != http.StatusOK {
		n.Fatalf("%s: %s", action, text)
	}
}

// newSickNode makes the node. The registry, the kernel and EC2 are as after real commands and calls.
func newSickNode(t *testing.T) *sickNode {
	n := &sickNode{T: t, dir: t.TempDir(), secrets: map[string]string{}}
	_, node, err := started(world(), ec2sim.RunInstance{Type: "c5.large", Subnet: "subnet-a",
		SecurityGroups: []string{"sg-node"}, PrivateIP: netip.MustParseAddr("10.0.0.10")},
		func(key, value string) { t.Setenv(key, value) }, func(f func()) { t.Cleanup(f) })
	if err != nil {
		t.Fatal(err)
	}
	n.ec2 = os.Getenv("AWS_ENDPOINT_URL_EC2")
	n.metadata(node)
	t.Setenv("CNI_IPVLAN_VPC_STATE_DIR", filepath.Join(n.dir, "state"))
	n.environment()
	n.conflists()
	n.create()
	n.pods()
	n.faults()
	n.others()
	n.journal()
	return n
}

// metadata serves the metadata of the node, with user data. No program may ask for these.
func (n *sickNode) metadata(node *ec2sim.Instance) {
	metadata, userData := node.Metadata(), n.secret("user data", "#!/bin/sh kubeadm join --token h4xx0r.ud01secret")
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if strings.HasSuffix(r.URL.Path, "/user-data") {
			n.Errorf("a program has asked for the user data")
			fmt.Fprint(w, userData)
			return
		}
		metadata.ServeHTTP(w, r)
	}))
	n.Cleanup(s.Close)
	n.Setenv("AWS_EC2_METADATA_SERVICE_ENDPOINT", s.URL)
}

// environment plants secrets in the environment of the tool, and in that of a container runtime.
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
		"AWS_CA_BUNDLE=/" + n.secret("runtime", "rt09-not-a-bundle"), "REGISTRY_TOKEN=" + n.secret("runtime", "rt10token"),
		"AWS_USE_FIPS_ENDPOINT=" + n.secret("runtime", "rtelevenfips")}
	if err := c.Start(); err != nil {
		n.Fatal(err)
	}
	n.Cleanup(func() { _ = c.Process.Kill(); _ = c.Wait() })
}

// conflists plants secrets in our conflist, and in files of others beside it.
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
{"type": "portmap", "snat": "`+n.secret("foreign plugin", "portmapsecret21")+`", "capabilities": {"portMappings": true}}]}`,
		0o600)
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
	n.write("net.d/calico-kubeconfig", "users:\n- user:\n    token: "+n.secret("kubeconfig", "eyJhbGciKube28.e30.abc")+"\n",
		0o600)
	n.write("net.d/60-broken.conflist", `{"name": `+n.secret("broken conflist", "brokensecret29"), 0o600)
}

// create makes ENIs. Some have tags and descriptions of others.
func (n *sickNode) create() {
	if out, err := n.tool("new-interface", "--subnet_filter=kubernetes_kubelet=true", "--ip_batch_size", "6", "sg-1"); err != nil {
		n.Fatalf("%s: %v", out, err)
	}
	n.call("CreateTags", url.Values{"ResourceId.1": {"eni-00000000000000002"}, "Tag.1.Key": {"db"},
		"Tag.1.Value":  {n.secret("tag of an ENI", "enitag30secret")},
		"Tag.2.Key":    {n.secret("key of a tag", "tagkey31secret")},
		"Tag.2.Value":  {"x"},
		"ResourceId.2": {"subnet-b"}, "Tag.3.Key": {"owner"},
		"Tag.3.Value": {n.secret("tag of a subnet", "correcthorsesubnettag")}})
	n.call("ModifyNetworkInterfaceAttribute", url.Values{"NetworkInterfaceId": {"eni-00000000000000002"},
		"Description.Value": {"CNI-ENI " + n.secret("description of an ENI", "descr33secret")}})
}

// update changes the registry.
func (n *sickNode) update(f func(*registry.State) error) {
	r, err := registry.Open(registry.Dir())
	if err == nil {
		err = r.Update(n.Context(), f)
	}
	if err != nil {
		n.Fatal(err)
	}
}

// pods leases addresses to pods, as ADDs do, with a lease log. One pod is gone without a DEL.
func (n *sickNode) pods() {
	n.run("ip", "netns", "add", "shop-cart-0")
	n.run("ip", "link", "add", "link", "eth1", "name", "on-eth1", "netns", "shop-cart-0", "up", "type", "macvlan",
		"mode", "private")
	n.run("ip", "-n", "shop-cart-0", "addr", "add", "10.0.1.5/32", "dev", "on-eth1")
	lease := func(addr, namespace, pod string, age time.Duration, bound bool) {
		n.update(func(s *registry.State) error {
			s.UseLog("net", registry.LeaseLog{File: filepath.Join(n.dir, "leases.log"), MaxSize: 10, MaxFiles: 3})
			a := netip.MustParseAddr(addr)
			id, _ := s.ENIOf(a)
			return s.Reserve(a, registry.Lease{Key: registry.Key{Network: "net", Attachment: registry.Attachment{
				ContainerID: "c-" + pod, IfName: "eth0"}}, ENI: id, PodNamespace: namespace, PodName: pod, Bound: bound,
				NetNS: "/run/netns/" + namespace + "-" + pod, Since: time.Now().Add(-age)})
		})
	}
	lease("10.0.1.5", "shop", "cart-0", time.Hour, true)
	lease("10.0.1.6", "shop", "checkout-7d9f8c6b5-x2x4z", 20*time.Minute, true)
	lease("10.0.1.7", "batch", "report-28391", 5*time.Second, false)
	lease("10.0.1.8", "shop", "gone-0", 40*time.Minute, true)
	n.update(func(s *registry.State) error {
		s.EndOf(registry.Key{Network: "net", Attachment: registry.Attachment{ContainerID: "c-gone-0", IfName: "eth0"}},
			time.Now(), time.Time{})
		return nil
	})
	n.update(func(s *registry.State) error {
		now := time.Now()
		s.Refusals["AssignPrivateIpAddresses eni-00000000000000002"] = registry.Refusal{
			Code: "PrivateIpAddressLimitExceeded", Message: "Number of private addresses will exceed limit. Authorization: " +
				n.secret("answer of EC2", "ec2message34"), Since: now.Add(-90 * time.Second), Until: now.Add(3 * time.Minute)}
		s.Failures["net/"] = registry.Failure{Text: "EC2 refuses AssignPrivateIpAddresses, token=" +
			n.secret("failure", "failure35token"), Hint: "see https://x:" + n.secret("hint", "hint36pass") + "@example.com/",
			Since: now.Add(-80 * time.Second)}
		return nil
	})
	n.spoil()
}

// spoil writes what this release does not know into the registry and the lease log.
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
	edited = strings.Replace(edited, `"mac":"`, `"password":"`+n.secret("ENI in the registry", "registryeni39")+`","mac":"`, 1)
	for _, planted := range []string{"registrylater37", "leaseannot38", "registryeni39"} {
		if !strings.Contains(edited, planted) {
			n.Fatalf("the registry has no place for %s: %s", planted, text)
		}
	}
	n.write("state/registry.json", edited, 0o600)
	log, err := os.OpenFile(filepath.Join(n.dir, "leases.log"), os.O_APPEND|os.O_WRONLY, 0)
	if err != nil {
		n.Fatal(err)
	}
	defer log.Close()
	fmt.Fprintf(log, `{"time":"2026-01-01T00:00:00Z","event":"begin","address":"10.0.1.9","pod":"old","annotations":"%s"}`+
		"\nnot a line %s\n", n.secret("lease log", "logannot40"), n.secret("lease log", "logline41"))
}

// faults are what the checks find.
func (n *sickNode) faults() {
	n.run("ip", "rule", "add", "pref", "10001", "from", "10.0.1.6", "lookup", "10001")
	n.run("ip", "addr", "add", "10.0.1.7/32", "dev", "eth1")
	n.Cleanup(func() { _ = exec.Command("ip", "rule", "del", "pref", "10001").Run() })
}

// others plants secrets in objects of the kernel that other programs have made.
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

// journal is what journalctl prints, with secrets in lines of our units and of others.
func (n *sickNode) journal() {
	var text strings.Builder
	line := func(program, unit, message string) {
		fmt.Fprintf(&text, `{"__REALTIME_TIMESTAMP":"%d","PRIORITY":"4","SYSLOG_IDENTIFIER":"%s","_SYSTEMD_UNIT":"%s",`+
			`"MESSAGE":"%s","_CMDLINE":"tool --password %s"}`+"\n", time.Now().Add(-time.Minute).UnixMicro(), program, unit,
			message, "cmdline46")
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

// contents are all files of a bundle, one after the other.
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

// TestSupportBundle makes a bundle of a sick node. Of the secrets that were planted, none is in the bundle, nor in what
// is made of it. The checks on its data find what they find on the node.
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
	if dir := os.Getenv("SUPPORT_BUNDLE_PAGE"); dir != "" {
		if err := os.WriteFile(filepath.Join(dir, "page.html"), pageText, 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

// sameFindings wants the checks on the data of a bundle to find what the node has found. Only checks that cannot be
// made there, or not all of them, may find less.
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
		unmade[u.Check] = true
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
