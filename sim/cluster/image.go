// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package cluster

import (
	"archive/tar"
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
)

// An image is a container image. Its only layer has copies of this machine's files. The nodes import archives of
// images, because there is no image registry.
type image struct {
	names      []string // with their tags
	entrypoint string   // empty if args begin with the program
	args       []string
	programs   map[string]string // programs to copy, by path in the image; the image also gets their libraries
	copies     map[string]string // other files to copy, by path in the image
	links      map[string]string // targets of symlinks, by path
	files      map[string]string // contents, by path
	dirs       []string
}

// Names of images. The conformance tests of this Kubernetes release use exactly these names for agnhost and pause.
const (
	Pause   = "registry.k8s.io/pause:3.10.2"
	Agnhost = "registry.k8s.io/e2e-test-images/agnhost:2.66.1"
	boom    = "registry.k8s.io/e2e-test-images/regression-issue-74839:1.5"
	CoreDNS = "registry.k8s.io/coredns/coredns:v1.15.0"
	// The image of an engine for NetworkPolicy. The manifest of the engine uses this name.
	engine = "registry.k8s.io/networking/kube-network-policies:v1.1.0"
)

// agnhostAliases are names of other images. In the cluster, our image agnhost also has these names. Kubernetes' network
// tests use the other images only for shells and tools, and agnhost has the same shells and tools.
var agnhostAliases = []string{
	"registry.k8s.io/e2e-test-images/glibc-dns-testing:2.1.1",
	"registry.k8s.io/e2e-test-images/busybox:1.37.0-2",
	"registry.k8s.io/e2e-test-images/nginx:1.27.0-2",
	"registry.k8s.io/build-image/distroless-iptables:v0.9.9",
}

// applets are the programs of busybox that the tests' scripts and the command "kubectl ipvlan" use. wget is missing,
// because it crashes when it looks up a name: this busybox is static, but the lookup needs shared libraries.
var applets = []string{"awk", "cat", "chmod", "chroot", "cut", "date", "echo", "env", "expr", "false", "grep", "head",
	"hostname", "id", "ls", "mkdir", "mount", "ping",
	"printenv", "rm", "sed", "seq", "sleep", "sort", "tail", "tee", "test", "timeout", "touch", "tr", "true",
	"umount", "wc", "xargs"}

// images returns the images of the cluster. Most programs of agnhost are copies from the Debian of this machine.
func images(runtimeDir, programs string) []image {
	agnhost := image{
		names: append([]string{Agnhost}, agnhostAliases...), entrypoint: "/agnhost", args: []string{"pause"},
		programs: map[string]string{
			"agnhost":     filepath.Join(programs, "agnhost"),
			"coredns":     filepath.Join(programs, "coredns"),
			"bin/busybox": "busybox",
			"bin/sh":      "dash", // not busybox: the shell of busybox would run its built-in nc, and not usr/bin/nc
		},
		copies: map[string]string{ // agnhost serves TLS with these files
			"localhost.crt": filepath.Join(programs, "localhost.crt"),
			"localhost.key": filepath.Join(programs, "localhost.key"),
		},
		links: map[string]string{"agnhost-2": "agnhost"},
		files: map[string]string{
			"etc/passwd":        "root:x:0:0:root:/root:/bin/sh\nuser:x:1000:1000::/:/bin/sh\n",
			"etc/group":         "root:x:0:\n",
			"etc/nsswitch.conf": "hosts: files dns\n",
		},
		dirs: []string{"tmp", "uploads", "root", "var", "mnt"},
	}
	for _, p := range []string{"curl", "dig", "nslookup", "nc.openbsd", "ip", "ss", "bash", "getent", "nsenter",
		"nft", "tc", "wget"} {
		agnhost.programs["usr/bin/"+strings.TrimSuffix(p, ".openbsd")] = p
	}
	for _, a := range applets {
		agnhost.links["bin/"+a] = "busybox"
	}
	return []image{
		{names: []string{Pause}, entrypoint: "/pause",
			programs: map[string]string{"pause": filepath.Join(runtimeDir, "pause")}},
		{names: []string{CoreDNS}, entrypoint: "/coredns",
			programs: map[string]string{"coredns": filepath.Join(programs, "coredns")}},
		{names: []string{engine}, args: []string{"/bin/netpol"},
			programs: map[string]string{"bin/netpol": filepath.Join(programs, "netpol")}},
		{names: []string{boom}, entrypoint: "/boom",
			programs: map[string]string{"boom": filepath.Join(programs, "regression-issue-74839")}},
		agnhost,
	}
}

// writeArchive writes an archive in the format of "docker save", which ctr can import.
func (i image) writeArchive(w io.Writer) error {
	layer, err := os.CreateTemp("", "layer")
	if err != nil {
		return err
	}
	defer os.Remove(layer.Name())
	defer layer.Close()
	sum := sha256.New()
	if err := i.writeLayer(io.MultiWriter(layer, sum)); err != nil {
		return fmt.Errorf("image %s: %w", i.names[0], err)
	}
	size, err1 := layer.Seek(0, io.SeekCurrent)
	_, err2 := layer.Seek(0, io.SeekStart)
	if err := errors.Join(err1, err2); err != nil {
		return err
	}
	config := object{
		"architecture": runtime.GOARCH, "os": "linux",
		"config": object{
			"Entrypoint": strings.Fields(i.entrypoint), "Cmd": i.args,
			"Env": []string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"},
		},
		"rootfs": object{"type": "layers", "diff_ids": []string{fmt.Sprintf("sha256:%x", sum.Sum(nil))}},
	}
	manifest := []object{{"Config": "config.json", "RepoTags": i.names, "Layers": []string{"layer.tar"}}}
	a := tar.NewWriter(w)
	return errors.Join(addFile(a, "layer.tar", 0o644, size, layer), addJSON(a, "config.json", config),
		addJSON(a, "manifest.json", manifest), a.Close())
}

type object = map[string]any

func addJSON(a *tar.Writer, name string, content any) error {
	b, err := json.Marshal(content)
	if err != nil {
		return err
	}
	return addFile(a, name, 0o644, int64(len(b)), bytes.NewReader(b))
}

func addFile(a *tar.Writer, name string, mode, size int64, content io.Reader) error {
	if err := a.WriteHeader(&tar.Header{Name: name, Mode: mode, Size: size}); err != nil {
		return err
	}
	_, err := io.Copy(a, content)
	return err
}

func (i image) writeLayer(w io.Writer) error {
	a := tar.NewWriter(w)
	for _, d := range i.dirs {
		if err := a.WriteHeader(&tar.Header{Name: d + "/", Typeflag: tar.TypeDir, Mode: 0o1777}); err != nil {
			return err
		}
	}
	for name, content := range i.files {
		if err := addFile(a, name, 0o644, int64(len(content)), strings.NewReader(content)); err != nil {
			return err
		}
	}
	for name, target := range i.links {
		if err := a.WriteHeader(&tar.Header{Name: name, Typeflag: tar.TypeSymlink, Linkname: target}); err != nil {
			return err
		}
	}
	for name, file := range i.copies {
		if err := copyFile(a, name, file); err != nil {
			return err
		}
	}
	var libraries []string
	for name, program := range i.programs {
		more, err := addProgram(a, name, program)
		if err != nil {
			return err
		}
		libraries = append(libraries, more...)
	}
	if len(libraries) > 0 { // ldd does not list the libraries that the C library opens when it looks up names
		libraries = append(libraries, resolvers()...)
	}
	slices.Sort(libraries)
	for _, l := range slices.Compact(libraries) {
		if err := copyFile(a, strings.TrimPrefix(l, "/"), l); err != nil {
			return err
		}
	}
	return a.Close()
}

// addProgram adds a program to an archive, and returns the paths of its libraries.
func addProgram(a *tar.Writer, name, program string) (libraries []string, err error) {
	path, err := exec.LookPath(program)
	if err != nil {
		return nil, err
	}
	out, err := exec.Command("ldd", path).Output()
	if err != nil { // ldd fails for a static program, which needs no libraries
		return nil, copyFile(a, name, path)
	}
	for f := range strings.FieldsSeq(string(out)) {
		if strings.HasPrefix(f, "/") {
			libraries = append(libraries, f)
		}
	}
	return libraries, copyFile(a, name, path)
}

func resolvers() []string {
	found, err := filepath.Glob("/lib/*-linux-gnu/libnss_[df][ni][sl]*.so.2")
	if err != nil {
		panic(err) // the pattern is from this package
	}
	return found
}

func copyFile(a *tar.Writer, name, file string) error {
	f, err := os.Open(file)
	if err != nil {
		return err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return err
	}
	return addFile(a, name, 0o755, info.Size(), f)
}

func (c *Cluster) writeImages() error {
	for k, i := range images(c.options.Runtime, c.options.Programs) {
		f, err := os.Create(filepath.Join(c.dir, fmt.Sprintf("image%d.tar", k)))
		if err != nil {
			return err
		}
		if err := errors.Join(i.writeArchive(f), f.Close()); err != nil {
			return err
		}
	}
	return nil
}

func (c *Cluster) archives() []string {
	all, err := filepath.Glob(filepath.Join(c.dir, "image*.tar"))
	if err != nil {
		panic(err) // the pattern is from this package
	}
	return all
}
