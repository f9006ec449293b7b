// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

// Record runs the real kube-proxy in each of its modes iptables and nftables. It records what kube-proxy changes on a
// node, and writes the records into the directory testdata of package kubeproxy.
//
//	cd sim/kubeproxy/record && go run .
//
// Record needs root, ip(8), nft(8) and iptables(8) in its nft variant. It gets the source of kube-proxy from the Go
// module proxy, and builds kube-proxy. The build takes minutes. kube-proxy runs in a network namespace of its own, and
// changes nothing outside of this namespace. In this namespace, kube-proxy finds an API server with the objects of
// testdata/scenario.json.
//
// Record is a separate module, so that no other code depends on Kubernetes. If you want to record a later kube-proxy,
// change the versions of k8s.io/kubernetes and of its staging modules in go.mod, and run go mod tidy.
package main

import (
	"bytes"
	"errors"
	"fmt"
	"log"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
)

const (
	source   = "k8s.io/kubernetes"
	testdata = "../testdata"
)

func main() {
	log.SetFlags(0)
	if err := record(os.Args[1:]); err != nil {
		log.Fatal(err)
	}
}

// record builds kube-proxy, and then starts this program for each mode in a new network namespace.
func record(args []string) error {
	if len(args) == 3 {
		return inNamespace(args[0], args[1], args[2])
	}
	dir, err := os.MkdirTemp("", "kube-proxy-*")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	version, err := output("go", "list", "-m", "-f", "{{.Version}}", source)
	if err != nil {
		return err
	}
	log.Printf("building kube-proxy %s", version)
	prog := filepath.Join(dir, "kube-proxy")
	if _, err := output("go", "build", "-o", prog, source+"/cmd/kube-proxy"); err != nil {
		return err
	}
	for mode := range modes {
		log.Printf("recording mode %s", mode)
		c := exec.Command("/proc/self/exe", mode, prog, version)
		c.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNET, Pdeathsig: syscall.SIGKILL}
		c.Stderr = os.Stderr
		if err := c.Run(); err != nil {
			return fmt.Errorf("mode %s: %w", mode, err)
		}
	}
	return nil
}

func output(name string, args ...string) (string, error) {
	out, err := exec.Command(name, args...).Output()
	if exit, ok := errors.AsType[*exec.ExitError](err); ok {
		err = fmt.Errorf("%w: %s", err, bytes.TrimSpace(exit.Stderr))
	}
	if err != nil {
		return "", fmt.Errorf("%s %s: %w", name, strings.Join(args, " "), err)
	}
	return strings.TrimSpace(string(out)), nil
}
