// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package containerd_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/aws/vpcsim"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/nl"
)

// Where make puts our programs, and containerd with what it executes.
const (
	pluginDir  = "../../../bin"
	programDir = "../../../.cache/containerd"
)

// A containerd is the container runtime of the node, with a folder for all that is its own.
type containerd struct {
	*vpc
	dir               string
	plugins, programs string    // folders
	process           *exec.Cmd // nil: it does not run
}

// containerdConfig has a handler for each network: a pod names one, or gets runc's. The rest keeps
// containerd to its folder, and from lowering its score for the killer of memory hogs, which is not allowed everywhere.
const containerdConfig = `version = 4
debug = {level = 'warn'}
[plugins.'io.containerd.cri.v1.images'.pinned_images]
sandbox = '` + pauseImage + `'
[plugins.'io.containerd.cri.v1.runtime']
restrict_oom_score_adj = true
cni = {bin_dirs = ['%[1]s/bin', '%[2]s'], conf_dir = '%[1]s/runc'}
[plugins.'io.containerd.nri.v1.nri']
disable = true
[plugins.'io.containerd.internal.v1.opt']
path = '%[1]s/opt'
[plugins.'io.containerd.shim.v1.manager']
socket_dir = '%[1]s/shims'
[plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes]
`

const containerdHandler = `%[3]s = {runtime_type = 'io.containerd.runc.v2', cni_conf_dir = '%[1]s/%[3]s', options = {BinaryName = '%[2]s/runc'}}
`

// newContainerd starts a containerd with the image of sandboxes and a network for each conflist.
func newContainerd(t *testing.T, v *vpc, conflists map[string][]byte) *containerd {
	t.Helper()
	c := &containerd{vpc: v, dir: v.node.StateDir + ".containerd", plugins: must(filepath.Abs(pluginDir)), programs: must(filepath.Abs(programDir))}
	pause, err := os.ReadFile(filepath.Join(c.programs, "pause"))
	if err != nil {
		t.Fatalf("%v: run make %s/containerd", err, c.programs)
	}
	config := fmt.Sprintf(containerdConfig, c.dir, c.programs)
	for handler, list := range conflists {
		config += fmt.Sprintf(containerdHandler, c.dir, c.programs, handler)
		c.write(t, handler+"/10.conflist", list)
	}
	c.write(t, "config.toml", []byte(config))
	c.write(t, "pause.tar", ociArchive(pauseImage, pause))
	c.installPlugins(t)
	t.Cleanup(func() { c.end(t) })
	c.start(t)
	c.run(t, "ctr", "--timeout", "1m", "--address", c.socket(), "--namespace", "k8s.io", "images", "import", filepath.Join(c.dir, "pause.tar"))
	return c
}

func (c *containerd) installPlugins(t *testing.T) {
	t.Helper()
	bin := filepath.Join(c.dir, "bin")
	err := os.Mkdir(bin, 0o755)
	for _, part := range []string{"", "-ipam", "-ipvlan", "-unnumbered-ptp"} {
		name := "cni-ipvlan-vpc-k8s" + part
		err = errors.Join(err, os.Symlink(filepath.Join(c.plugins, name), filepath.Join(bin, name)))
	}
	if err != nil {
		t.Fatal(err)
	}
}

func (c *containerd) write(t *testing.T, name string, content []byte) {
	t.Helper()
	file := filepath.Join(c.dir, name)
	if err := errors.Join(os.MkdirAll(filepath.Dir(file), 0o755), os.WriteFile(file, content, 0o644)); err != nil {
		t.Fatal(err)
	}
}

// await waits until there is no error any more.
func await(t *testing.T, try func() error) {
	t.Helper()
	again := time.NewTicker(50 * time.Millisecond)
	defer again.Stop()
	for deadline := time.Now().Add(time.Minute); ; <-again.C {
		err := try()
		if err == nil {
			return
		}
		if time.Now().After(deadline) {
			t.Fatal(err)
		}
	}
}

func (c *containerd) socket() string { return filepath.Join(c.dir, "socket") }

// start starts the process and waits until it has read what there was before.
func (c *containerd) start(t *testing.T) {
	t.Helper()
	log, err := os.OpenFile(c.log(), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		t.Fatal(err)
	}
	defer log.Close()
	p := exec.Command(filepath.Join(c.programs, "containerd"), "--config", filepath.Join(c.dir, "config.toml"),
		"--root", filepath.Join(c.dir, "root"), "--state", filepath.Join(c.dir, "state"), "--address", c.socket())
	p.Env = append(append(os.Environ(), c.node.Env()...), "PATH="+c.programs+":"+os.Getenv("PATH"))
	p.Stdout, p.Stderr = log, log
	if err := c.node.Do(p.Start); err != nil {
		t.Fatal(err)
	}
	c.process = p
	await(t, func() error { return c.call("Version", object{}, nil) })
}

func (c *containerd) log() string { return filepath.Join(c.dir, "log") }

// kill is what the kernel does to it when memory runs out.
func (c *containerd) kill(t *testing.T) {
	t.Helper()
	if err := c.process.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	c.process.Wait() // which says that it was killed
	c.process = nil
}

// end removes the pods that a test which failed has left, and ends containerd.
func (c *containerd) end(t *testing.T) {
	if c.process != nil {
		for _, id := range c.sandboxes(t) {
			if err := c.remove(id); err != nil {
				t.Error(err)
			}
		}
		defer time.AfterFunc(10*time.Second, func() { c.process.Process.Kill() }).Stop()
		if err := errors.Join(c.process.Process.Signal(os.Interrupt), c.process.Wait()); err != nil {
			t.Error(err)
		}
	}
	if err := os.Remove(cgroup); err != nil && !errors.Is(err, fs.ErrNotExist) {
		t.Error(err)
	}
	if log, err := os.ReadFile(c.log()); t.Failed() {
		t.Logf("containerd: %v\n%s", err, log)
	}
}

// run runs one of the programs that came with containerd.
func (c *containerd) run(t *testing.T, program string, args ...string) {
	t.Helper()
	if out, err := exec.Command(filepath.Join(c.programs, program), args...).CombinedOutput(); err != nil {
		t.Fatalf("%s: %v: %s", program, err, out)
	}
}

func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

// An object is a message of the Container Runtime Interface, as it is in JSON.
type object = map[string]any

// call calls a method and decodes its answer, if that is wanted. It waits until containerd has started.
func (c *containerd) call(method string, request object, answer any) error {
	cmd := exec.Command(filepath.Join(c.programs, "cri"), c.socket(), method, string(must(json.Marshal(request))))
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		return fmt.Errorf("%s: %w: %s", method, err, strings.TrimSpace(stderr.String()))
	}
	if answer == nil {
		return nil
	}
	return json.Unmarshal(out, answer)
}

// sandboxes are the IDs of all that containerd knows.
func (c *containerd) sandboxes(t *testing.T) (ids []string) {
	var answer struct{ Items []struct{ ID string } }
	if err := c.call("ListPodSandbox", object{}, &answer); err != nil {
		t.Error(err)
	}
	for _, s := range answer.Items {
		ids = append(ids, s.ID)
	}
	return ids
}

// cgroup is the parent of the pods', and cgroupParent its name below the root.
const (
	cgroup       = "/sys/fs/cgroup" + cgroupParent
	cgroupParent = "/vpcsim"
)

// A sandbox is a pod, as containerd shows it.
type sandbox struct {
	*vpcsim.Namespace
	id    string
	addrs []netip.Addr
}

// runPod asks for a pod of a handler, as kubelet does.
func (c *containerd) runPod(handler, name string, annotations map[string]string) (id string, err error) {
	var answer struct{ PodSandboxID string }
	err = c.call("RunPodSandbox", object{"runtimeHandler": handler, "config": object{
		"metadata":    object{"name": name, "namespace": "shop", "uid": name},
		"annotations": annotations,
		"linux":       object{"cgroupParent": cgroupParent},
	}}, &answer)
	return answer.PodSandboxID, err
}

// newSandbox makes a pod and looks at it.
func (c *containerd) newSandbox(handler, name string, annotations map[string]string) (*sandbox, error) {
	id, err := c.runPod(handler, name, annotations)
	if err != nil {
		return nil, err
	}
	return c.inspect(id)
}

func (c *containerd) inspect(id string) (*sandbox, error) {
	var answer struct {
		Status struct {
			State   string
			Network struct {
				IP            netip.Addr
				AdditionalIPs []struct{ IP netip.Addr }
			}
		}
		Info struct{ Info string } // JSON that is containerd's own
	}
	if err := c.call("PodSandboxStatus", object{"podSandboxId": id, "verbose": true}, &answer); err != nil {
		return nil, err
	}
	if answer.Status.State != "SANDBOX_READY" {
		return nil, fmt.Errorf("sandbox %s is %s", id, answer.Status.State)
	}
	path, err := networkNamespace(answer.Info.Info)
	if err != nil {
		return nil, err
	}
	ns, err := nl.Open(id, path)
	if err != nil {
		return nil, err
	}
	s := &sandbox{Namespace: &vpcsim.Namespace{NS: ns}, id: id, addrs: []netip.Addr{answer.Status.Network.IP}}
	for _, more := range answer.Status.Network.AdditionalIPs {
		s.addrs = append(s.addrs, more.IP)
	}
	return s, nil
}

// networkNamespace is the path of the one in which the sandbox's program runs.
func networkNamespace(info string) (string, error) {
	var sandbox struct {
		RuntimeSpec struct {
			Linux struct{ Namespaces []struct{ Type, Path string } }
		}
	}
	if err := json.Unmarshal([]byte(info), &sandbox); err != nil {
		return "", err
	}
	for _, n := range sandbox.RuntimeSpec.Linux.Namespaces {
		if n.Type == "network" {
			return n.Path, nil
		}
	}
	return "", fmt.Errorf("no network namespace in %s", info)
}

// remove ends a pod, as kubelet does.
func (c *containerd) remove(id string) error {
	return errors.Join(
		c.call("StopPodSandbox", object{"podSandboxId": id}, nil),
		c.call("RemovePodSandbox", object{"podSandboxId": id}, nil))
}
