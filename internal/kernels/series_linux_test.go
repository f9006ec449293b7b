// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// debian has scripts that replace programs of Debian. According to these scripts, the user is root, and the mirror has
// none of the packages.
var debian = map[string]string{
	"id":         `echo 0`,
	"dpkg-query": `echo installed`,
	"dpkg":       `echo amd64`,
	"apt-get":    `case "$*" in *indextargets*) echo mirror ;; *download*) exit 100 ;; esac`,
	"apt-cache": `[ "$1" = pkgnames ] || exit 0
		echo linux-image-cloud-amd64
		for v in 6.1.0-50 6.1.0-9 6.18.9+deb13 6.18.15+deb13 6.12.117+deb13 6.12.95+deb12; do echo "linux-image-$v-cloud-amd64"; done
		echo linux-image-6.18.16+deb13-cloud-amd64-unsigned; echo linux-image-6.18.17+deb13-amd64`,
}

// TestSeries checks which kernel the variable VM_KERNEL chooses. The script stops before the download.
func TestSeries(t *testing.T) {
	setup, err := filepath.Abs("../../nl/nltest/vm/setup")
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	for name, script := range debian {
		if err := os.WriteFile(filepath.Join(dir, name), []byte("#!/bin/sh\n"+script+"\n"), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	for kernel, want := range map[string]string{
		"6.1":  "cannot fetch linux-image-6.1.0-50-cloud-amd64",
		"6.12": "cannot fetch linux-image-6.12.117+deb13-cloud-amd64",
		"6.18": "cannot fetch linux-image-6.18.15+deb13-cloud-amd64",
		"6.2": "VM_KERNEL=6.2: there is no kernel of that series for the cloud in bullseye bookworm " +
			"bookworm-backports trixie trixie-backports. There are 6.1 6.12 6.18\n",
		"sid":     "there is no linux-image-cloud-amd64 in sid\n",
		"6":       "VM_KERNEL=6: want a series",
		"6.18.15": "VM_KERNEL=6.18.15: want a series",
		"../6.18": "VM_KERNEL=../6.18: want a series",
		"6.18 x":  "VM_KERNEL=6.18 x: want a series",
	} {
		c := exec.Command(setup, "-d")
		c.Env = append(os.Environ(), "PATH="+dir+":"+os.Getenv("PATH"), "VM_KERNEL="+kernel,
			"XDG_CACHE_HOME="+t.TempDir())
		if out, err := c.CombinedOutput(); err == nil || !strings.Contains(string(out), want) {
			t.Errorf("VM_KERNEL=%s: %v, want %q in %s", kernel, err, want, out)
		}
	}
}
