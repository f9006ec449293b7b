// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package e2e

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"maps"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/containernetworking/cni/libcni"
	"github.com/containernetworking/cni/pkg/invoke"
	"github.com/containernetworking/cni/pkg/types"
	"github.com/rogpeppe/go-internal/testscript"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/nl/nltest"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/sim/ec2sim"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/sim/simtest"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/sim/vpcsim"
)

// programs returns the directory of our programs, which make builds. inMemory reads all programs, for two reasons.
// First, the go command then knows that the result of a test depends on the programs. Second, a VM loads a file page by
// page from its host. On a busy machine, this took longer than the time limit of a plugin.
func programs(t testing.TB) string {
	t.Helper()
	dir, err := inMemory()
	if err != nil {
		t.Fatalf("%v: run make build", err)
	}
	return dir
}

var inMemory = sync.OnceValues(func() (dir string, err error) {
	dir, err = filepath.Abs("bin")
	files := []string{"/proc/self/exe"}
	for _, part := range []string{"", "-grow", "-ipam", "-ipvlan", "-unnumbered-ptp", "-tool"} {
		files = append(files, filepath.Join(dir, "cni-ipvlan-vpc-k8s"+part))
	}
	for _, file := range files {
		_, e := os.ReadFile(file)
		err = errors.Join(err, e)
	}
	return dir, err
})

// With the flag every, tests try every combination of their parameters. Without it, they try each value at least once:
//
//	go test -exec "$PWD/nl/nltest/vm/exec" ./e2e -args -every
var every = flag.Bool("every", false, "test every combination, not each value once")

// A form is a variant of our conflists: unchanged, with three plugins, or with the combined plugin.
type form struct {
	name string
	of   func(list []byte) []byte
}

var forms = []form{
	{"three plugins", func(list []byte) []byte { return list }},
	{"one plugin", merged},
}

// formsOf returns the forms for the nth case of a test: every form with the flag every, otherwise one form in turn.
func formsOf(nth int) []form {
	if *every {
		return forms
	}
	return forms[nth%len(forms):][:1]
}

// TestChain runs the transcripts in testdata on a simulated instance, in each form. The transcripts have the commands
// of testscript, and these commands:
//
//	pod NAME              make the namespace of a pod
//	nopod NAME            remove the namespace of a pod
//	cni VERB POD CONFLIST run a command of the chain by libcni, as a runtime does
//	node PROGRAM ARG...   run a program on the node
//	ec2 WANT              compare the EC2 calls since the previous "ec2" that change something, as "Action=count ..."
//	fail ACTION CODE N    EC2 refuses the next N calls of an action with this code
//	ping POD ADDRESS      send an echo request from a pod, from the node, or from the host
func TestChain(t *testing.T) {
	nltest.Need(t, "root", "ipvlan", "nftables")
	for _, form := range forms {
		t.Run(form.name, func(t *testing.T) {
			for _, file := range must(filepath.Glob("e2e/testdata/*.txtar")) {
				t.Run(filepath.Base(file), func(t *testing.T) { testChain(t, file, form.of) })
			}
		})
	}
}

// testChain runs one transcript. Two transcripts cannot run at the same time: they use the same addresses. A collection
// looks into all namespaces, so it would also find the pods of the other transcript.
func testChain(t *testing.T, file string, form func([]byte) []byte) {
	testscript.Run(t, testscript.Params{
		Files:               []string{file},
		RequireExplicitExec: true,
		UpdateScripts:       os.Getenv("UPDATE") != "",
		Setup:               func(e *testscript.Env) error { return setup(t, e, form) },
		Cmds: map[string]func(*testscript.TestScript, bool, []string){
			"pod":   func(ts *testscript.TestScript, _ bool, args []string) { ts.Check(on(ts).newPod(args[0])) },
			"nopod": func(ts *testscript.TestScript, _ bool, args []string) { ts.Check(on(ts).removePod(args[0])) },
			"cni": func(ts *testscript.TestScript, neg bool, args []string) {
				verdict(ts, neg, on(ts).cni(ts, args))
			},
			"node": func(ts *testscript.TestScript, neg bool, args []string) {
				verdict(ts, neg, on(ts).run(ts, args))
			},
			"ec2": func(ts *testscript.TestScript, _ bool, args []string) {
				ts.Check(on(ts).ec2(strings.Join(args, " ")))
			},
			"fail": func(ts *testscript.TestScript, _ bool, args []string) { ts.Check(on(ts).fail(args)) },
			"ping": func(ts *testscript.TestScript, neg bool, args []string) {
				verdict(ts, false, on(ts).ping(!neg, args))
			},
		},
	})
}

// verdict fails the script if a command has failed. If the script negates the command, verdict fails the script if the
// command has succeeded.
func verdict(ts *testscript.TestScript, neg bool, err error) {
	if neg && err == nil {
		ts.Fatalf("no error")
	}
	if !neg {
		ts.Check(err)
	}
}

// A world is a node in a VPC, and its pods, for a test or a transcript.
type world struct {
	*vpc
	node   *vpcsim.Instance
	pods   map[string]*vpcsim.Namespace
	path   string // the directories of the plugins
	cache  string // the directory of libcni's cache
	stderr io.Writer
	conf   func(name string) (*libcni.NetworkConfigList, error)

	kubernetes   string         // the Kubernetes namespace of the pods; "": shop
	ifName       string         // the name of the interface of an attachment; "": eth0
	capabilities map[string]any // what the runtime passes to plugins with the capability
}

type worldKey struct{}

func on(ts *testscript.TestScript) *world { return ts.Value(worldKey{}).(*world) }

func setup(t *testing.T, e *testscript.Env, form func([]byte) []byte) error {
	w := newVPC(t, ec2sim.World(`
		vpc-1       10.0.0.0/16 100.64.0.0/16
		subnet-node 10.0.0.0/24 public
		subnet-pod1 100.64.0.0/20 kubernetes_kubelet=true`), 0).launch(t, example{})
	w.pods["node"], w.pods["host"] = w.node.Namespace, w.host.Namespace
	w.conf = func(name string) (*libcni.NetworkConfigList, error) {
		b, err := os.ReadFile(filepath.Join(e.WorkDir, name))
		if err != nil {
			return nil, err
		}
		return libcni.ConfListFromBytes(form(b))
	}
	e.Setenv("NODE", w.node.Addr().String())
	e.Setenv("HOST", w.host.Addr().String())
	e.Setenv("STATE", w.node.StateDir)
	e.Values[worldKey{}] = w
	return copyFiles("conflist-examples/*.conflist", e.WorkDir)
}

// A vpc has nodes, and a host that is not a node.
type vpc struct {
	fabric *vpcsim.Fabric
	host   *vpcsim.Instance
}

// newVPC makes a VPC for a test. Its host has as many IPv6 addresses as the argument ipv6 says.
func newVPC(t *testing.T, c ec2sim.Config, ipv6 int) *vpc {
	t.Helper()
	f := simtest.Fabric(t, c)
	run := ec2sim.RunInstance{Type: "m5.large", Subnet: "subnet-node", IPv6: ipv6}
	return &vpc{f, simtest.Launch(t, f, "host", run)}
}

// launch starts the node of an example, and makes a pod's namespace. This process then calls libcni, as a runtime does.
func (v *vpc) launch(t *testing.T, x example) *world {
	t.Helper()
	w := &world{vpc: v, pods: map[string]*vpcsim.Namespace{}, kubernetes: x.kubernetes, capabilities: x.capabilities,
		path: programs(t), cache: t.TempDir(), stderr: t.Output()}
	w.node = simtest.Launch(t, v.fabric, filepath.Base(t.Name()), ec2sim.RunInstance{
		Type: cmp.Or(x.instance, "m5.large"), Subnet: "subnet-node", IPv6: x.ipv6})
	if x.provisioned {
		w.provision(t)
	}
	w.pod(t, "pod")
	v.fabric.EC2.ResetCalls()
	return w
}

// pod creates the namespace of a pod, with a server at examplePort.
func (w *world) pod(t *testing.T, name string) {
	t.Helper()
	err := w.newPod(name)
	if err == nil {
		err = w.pods[name].Answer(examplePort)
	}
	if err != nil {
		t.Fatal(err)
	}
}

func copyFiles(pattern, dir string) error {
	for _, file := range must(filepath.Glob(pattern)) {
		b, err := os.ReadFile(file)
		if err == nil {
			err = os.WriteFile(filepath.Join(dir, filepath.Base(file)), b, 0o600)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func (w *world) newPod(name string) error {
	n, err := w.fabric.NewNamespace(w.node.Name + "-" + name)
	w.pods[name] = n
	return err
}

// removePod removes the namespace of a pod, as some runtimes do before they call DEL.
func (w *world) removePod(name string) error {
	n := w.pods[name]
	delete(w.pods, name)
	return n.Close()
}

// cni runs VERB POD CONFLIST. It prints the result without the parts that differ in each run.
func (w *world) cni(ts *testscript.TestScript, args []string) error {
	verb, pod, file := args[0], args[1], args[2]
	list, err := w.conf(file)
	if err != nil {
		return err
	}
	result, err := w.call(list, verb, pod)
	if err != nil {
		fmt.Fprintln(ts.Stdout(), err)
		return err
	}
	if result == nil {
		return nil
	}
	var out bytes.Buffer
	if err := result.PrintTo(&out); err != nil {
		return err
	}
	fmt.Fprintln(ts.Stdout(), normal(out.String()))
	return nil
}

// call runs a command of the chain in the node's namespace.
func (w *world) call(list *libcni.NetworkConfigList, verb, pod string) (result types.Result, err error) {
	cni := libcni.NewCNIConfigWithCacheDir([]string{w.path, peers, judges}, w.cache, w.runner())
	rt := &libcni.RuntimeConf{
		ContainerID: "id-" + pod, NetNS: w.netns(pod), IfName: cmp.Or(w.ifName, "eth0"),
		Args: [][2]string{{"IgnoreUnknown", "1"}, {"K8S_POD_NAMESPACE", cmp.Or(w.kubernetes, "shop")},
			{"K8S_POD_NAME", pod}},
		CapabilityArgs: w.capabilities,
	}
	ctx := context.Background()
	err = w.node.Do(func() (err error) {
		switch verb {
		case "ADD":
			result, err = cni.AddNetworkList(ctx, list, rt)
		case "DEL":
			err = cni.DelNetworkList(ctx, list, rt)
		case "CHECK":
			err = cni.CheckNetworkList(ctx, list, rt)
		case "STATUS":
			err = cni.GetStatusNetworkList(ctx, list)
		case "GC":
			err = cni.GCNetworkList(ctx, list,
				&libcni.GCArgs{ValidAttachments: []types.GCAttachment{{ContainerID: rt.ContainerID,
					IfName: rt.IfName}}})
		default:
			err = fmt.Errorf("no verb %q", verb)
		}
		return err
	})
	return result, err
}

func (w *world) netns(pod string) string {
	if n, ok := w.pods[pod]; ok {
		return n.Path
	}
	return ""
}

// A runner executes plugins with the environment of an instance.
type runner struct {
	*invoke.DefaultExec
	env []string
}

func (w *world) runner() invoke.Exec {
	return &runner{&invoke.DefaultExec{RawExec: &invoke.RawExec{Stderr: w.stderr}}, w.node.Env()}
}

func (r *runner) ExecPlugin(ctx context.Context, path string, stdin []byte, environ []string) ([]byte, error) {
	return r.DefaultExec.ExecPlugin(ctx, path, stdin, append(environ, r.env...))
}

var (
	mac   = regexp.MustCompile(`"[0-9a-f]{2}(:[0-9a-f]{2}){5}"`)
	veth  = regexp.MustCompile(`"veth[0-9a-f]{11}"`)
	netns = regexp.MustCompile(`"[^"]*/netns/[^"]*"`)
)

func normal(s string) string {
	s = mac.ReplaceAllString(s, `"MAC"`)
	s = veth.ReplaceAllString(s, `"VETH"`)
	return netns.ReplaceAllString(s, `"NETNS"`)
}

func (w *world) run(ts *testscript.TestScript, args []string) error {
	return w.node.Do(func() error {
		cmd := exec.Command(filepath.Join(w.path, args[0]), args[1:]...)
		cmd.Env = append(os.Environ(), w.node.Env()...)
		cmd.Stdout, cmd.Stderr = ts.Stdout(), ts.Stderr()
		return cmd.Run()
	})
}

// ec2 compares want with the counts of the changing EC2 calls since the last comparison.
func (w *world) ec2(want string) error {
	counts := w.fabric.EC2.Changed()
	w.fabric.EC2.ResetCalls()
	var got []string
	for _, action := range slices.Sorted(maps.Keys(counts)) {
		got = append(got, fmt.Sprintf("%s=%d", action, counts[action]))
	}
	if got := strings.Join(got, " "); got != want {
		return fmt.Errorf("EC2 was asked for %q, want %q", got, want)
	}
	return nil
}

func (w *world) fail(args []string) error {
	var n int
	if _, err := fmt.Sscan(args[2], &n); err != nil {
		return err
	}
	w.fabric.EC2.Fail(args[0], args[1], n)
	return nil
}

func (w *world) ping(answers bool, args []string) error {
	a, err := netip.ParseAddr(args[1])
	if err != nil {
		return err
	}
	if !answers {
		return w.pods[args[0]].Silent(a)
	}
	return w.pods[args[0]].Ping(a)
}

// TestEveryVersion: the original's example works unchanged, in every version of the specification that supports chains.
func TestEveryVersion(t *testing.T) {
	nltest.Need(t, "root", "ipvlan", "nftables")
	original, err := os.ReadFile("conflist-examples/original.conflist")
	if err != nil {
		t.Fatal(err)
	}
	w := exampleVPC(t).launch(t, example{})
	for i, version := range []string{"0.3.1", "0.3.0", "0.4.0", "1.0.0", "1.1.0"} { // the original's example has 0.3.1
		for _, form := range formsOf(i) {
			t.Run(version+" "+form.name, func(t *testing.T) {
				list, err := libcni.ConfListFromBytes(form.of(bytes.ReplaceAll(original, []byte("0.3.1"),
					[]byte(version))))
				if err != nil {
					t.Fatal(err)
				}
				testVersion(t, w, list, version)
			})
		}
	}
}

func testVersion(t *testing.T, w *world, list *libcni.NetworkConfigList, version string) {
	result, err := w.call(list, "ADD", "pod")
	if err != nil {
		t.Fatal(err)
	}
	var got struct {
		CNIVersion string
		Interfaces []struct{ Name string }
		IPs        []struct {
			Interface int
			Address   netip.Prefix
		}
	}
	if err := json.Unmarshal(must(json.Marshal(result)), &got); err != nil {
		t.Fatal(err)
	}
	if got.CNIVersion != version || len(got.Interfaces) != 3 || got.Interfaces[0].Name != "eth0" ||
		got.Interfaces[2].Name != "eth1" ||
		len(got.IPs) != 1 || got.IPs[0].Interface != 0 {
		t.Errorf("result %+v", got)
	}
	if err := w.host.Ping(got.IPs[0].Address.Addr()); err != nil {
		t.Error(err)
	}
	if version >= "0.4.0" {
		if _, err := w.call(list, "CHECK", "pod"); err != nil {
			t.Error(err)
		}
	}
	for range 2 {
		if _, err := w.call(list, "DEL", "pod"); err != nil {
			t.Error(err)
		}
	}
}

// merged returns the conflist with the combined plugin instead of the three.
func merged(list []byte) []byte {
	var l map[string]any
	if err := json.Unmarshal(list, &l); err != nil {
		panic(err)
	}
	one, plugins := map[string]any{}, []any{nil}
	for _, p := range l["plugins"].([]any) {
		if p := p.(map[string]any); strings.HasPrefix(p["type"].(string), "cni-ipvlan-vpc-k8s") {
			maps.Copy(one, p)
		} else {
			plugins = append(plugins, p)
		}
	}
	one["type"] = "cni-ipvlan-vpc-k8s"
	plugins[0], l["plugins"] = one, plugins
	return must(json.Marshal(l))
}

func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}
