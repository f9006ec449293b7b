// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package cri_test

import (
	"cmp"
	"errors"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"
)

// make puts our programs into pluginDir. It puts the container runtimes and the programs that they need into
// programDir.
const (
	pluginDir  = "../../bin"
	programDir = "../../.cache/cri"
)

// A kind is a container runtime and its configuration.
type kind struct {
	program   string
	release   string                                               // directory of another release; empty: programDir
	configure func(s *server, networks []string) map[string]string // returns files for the server's directory
	args      func(*server) []string
	handlers  bool             // a pod chooses its network; otherwise all pods have the network of the last start
	keeps     bool             // whether the next start keeps a pod whose ADD has not finished
	crowd     int              // number of pods that start at once; the start of a pod takes seconds with containerd
	stories   []story          // stories for this runtime only
	peers     []string         // files of other projects' plugins
	images    map[string]image // images in addition to pauseImage, by repository
	leaves    []string         // patterns of files in the server's directory that the runtime creates for pods
}

// A server is the container runtime of the node, with a directory of its own.
type server struct {
	kind
	*vpc
	dir               string
	plugins, programs string    // directories
	network           string    // the network of the next pods
	process           *exec.Cmd // nil: the runtime is not running
}

const shipped = "shipped"

// newServer starts a container runtime that has a network for each conflist. The keys of conflists are the names of the
// networks. One of these names must be the constant shipped.
func newServer(t *testing.T, k kind, v *vpc, conflists map[string][]byte) *server {
	t.Helper()
	s := &server{kind: k, vpc: v, dir: v.node.StateDir + "." + k.program, network: shipped,
		plugins: must(filepath.Abs(pluginDir)), programs: must(filepath.Abs(programDir))}
	pause, err := os.ReadFile(filepath.Join(s.programs, "pause"))
	if err != nil {
		t.Fatalf("%v: run make %[2]s/containerd %[2]s/crio", err, s.programs)
	}
	for network, list := range conflists {
		s.write(t, network+"/10.conflist", list)
	}
	for name, content := range k.configure(s, slices.Collect(maps.Keys(conflists))) {
		s.write(t, name, []byte(content))
	}
	s.installPlugins(t)
	images := map[string]image{"pause": pauseOf(pause)}
	maps.Copy(images, k.images)
	s.serveImages(t, images)
	t.Cleanup(func() { s.end(t) })
	s.start(t)
	s.ready(t)
	return s
}

func (s *server) installPlugins(t *testing.T) {
	t.Helper()
	err := os.Mkdir(s.path("bin"), 0o755)
	for _, part := range []string{"", "-grow", "-ipam", "-ipvlan", "-unnumbered-ptp"} {
		name := "cni-ipvlan-vpc-k8s" + part
		err = errors.Join(err, os.Symlink(filepath.Join(s.plugins, name), filepath.Join(s.path("bin"), name)))
	}
	for _, theirs := range s.peers {
		name := filepath.Join(s.path("bin"), filepath.Base(theirs))
		err = errors.Join(err, os.Symlink(must(filepath.Abs(theirs)), name))
	}
	for name, script := range map[string]string{"broken": broken, "kills": kills} {
		err = errors.Join(err, os.WriteFile(filepath.Join(s.path("bin"), name), []byte(script), 0o755))
	}
	if err != nil {
		t.Fatal(err)
	}
}

// broken is a foreign plugin that fails at the end of the chain.
const broken = `#!/bin/sh
case $CNI_COMMAND in
VERSION) echo '{"cniVersion": "1.1.0", "supportedVersions": ["0.4.0", "1.0.0", "1.1.0"]}' ;;
ADD) echo '{"cniVersion": "1.1.0", "code": 100, "msg": "broken by intent"}' && exit 1 ;;
esac
`

// path returns a path in the server's directory.
func (s *server) path(name string) string { return filepath.Join(s.dir, name) }

func (s *server) write(t *testing.T, name string, content []byte) {
	t.Helper()
	file := s.path(name)
	if err := errors.Join(os.MkdirAll(filepath.Dir(file), 0o755), os.WriteFile(file, content, 0o644)); err != nil {
		t.Fatal(err)
	}
}

func await(t *testing.T, try func() error) {
	t.Helper()
	if err := repeated(try); err != nil {
		t.Fatal(err)
	}
}

// repeated repeats try until it succeeds, for at most five minutes, and returns its last error.
func repeated(try func() error) error {
	again := time.NewTicker(50 * time.Millisecond)
	defer again.Stop()
	for deadline := time.Now().Add(5 * time.Minute); ; <-again.C {
		if err := try(); err == nil || time.Now().After(deadline) {
			return err
		}
	}
}

// start starts the runtime, and waits until it has restored its state.
func (s *server) start(t *testing.T) {
	t.Helper()
	log, err := os.OpenFile(s.path("log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		t.Fatal(err)
	}
	defer log.Close()
	p := exec.Command(s.executable(), s.args(s)...)
	p.Env = s.env()
	p.Stdout, p.Stderr = log, log
	if err := s.node.Do(p.Start); err != nil {
		t.Fatal(err)
	}
	s.process = p
	await(t, func() error { return s.call("Version", object{}, nil) })
}

// env returns the environment of the runtime. In PATH, the directory of the runtime's release comes first.
func (s *server) env() []string {
	path := strings.Join([]string{filepath.Dir(s.executable()), s.programs, os.Getenv("PATH")}, ":")
	return slices.Concat(os.Environ(), s.node.Env(), []string{"PATH=" + path})
}

func (s *server) executable() string { return filepath.Join(cmp.Or(s.release, s.programs), s.program) }

func (s *server) ready(t *testing.T) {
	t.Helper()
	await(t, func() error {
		if ok, message := s.networkReady(t); !ok {
			return errors.New(message)
		}
		return nil
	})
}

func (s *server) use(t *testing.T, network string) {
	t.Helper()
	if s.network == network {
		return
	}
	s.network = network
	if !s.handlers {
		s.stop(t)
		s.start(t)
		s.ready(t)
	}
}

// kill kills the runtime, as the kernel's OOM killer does.
func (s *server) kill(t *testing.T) {
	t.Helper()
	if err := s.process.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	s.process.Wait() // Wait returns an error, because the process was killed
	s.process = nil
}

func (s *server) stop(t *testing.T) {
	t.Helper()
	p := s.process
	s.process = nil
	defer time.AfterFunc(5*time.Minute, func() { p.Process.Kill() }).Stop()
	if err := errors.Join(p.Process.Signal(os.Interrupt), p.Wait()); err != nil {
		t.Error(err)
	}
}

// end removes the pods that a failed test has left, and stops the runtime.
func (s *server) end(t *testing.T) {
	if s.process != nil {
		for _, id := range s.sandboxes(t) {
			if err := s.remove(id); err != nil {
				t.Error(err)
			}
		}
		s.stop(t)
	}
	if err := errors.Join(unmount(s.path("namespaces/*/*")), removeCgroups()); err != nil {
		t.Error(err)
	}
	if log, err := os.ReadFile(s.path("log")); t.Failed() {
		t.Logf("%s: %v\n%s", s.program, err, log)
	}
}

func unmount(pattern string) (err error) {
	for _, point := range must(filepath.Glob(pattern)) {
		err = errors.Join(err, syscall.Unmount(point, 0))
	}
	return err
}

func removeCgroups() (err error) {
	for _, procs := range append(must(filepath.Glob(cgroups)), cgroup+"/cgroup.procs") {
		if e := os.Remove(filepath.Dir(procs)); !errors.Is(e, fs.ErrNotExist) {
			err = errors.Join(err, e)
		}
	}
	return err
}

func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}
