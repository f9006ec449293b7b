// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package cri_test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/nl/nltest"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/sim/judge"
)

// network has the tests of critest that need or delete the network of a pod.
var network = judge.Suite{
	Focus: "Networking|operations on PodSandbox|sysctls|metrics descriptors|Idempotence|support network|HostNetwork|" +
		"portforward|runtime conditions",
	Not: map[string]string{
		"listing pod sandbox metrics": "the kernel of the tests counts no swap",
		"":                            "they test containers, images, mounts, security and NRI",
	},
}

// TestJudgeCritest runs critest, the tests of the Container Runtime Interface, with containerd. The conflist has our
// plugin and portmap.
func TestJudgeCritest(t *testing.T) {
	nltest.Need(t, "root", "ipvlan", "nftables", "iptables")
	for _, path := range []string{"ipvlan", "veth"} {
		t.Run(path, func(t *testing.T) {
			k := containerd
			k.peers, k.images = []string{"../../.cache/peers/portmap"}, imagesOfCritest()
			list := must(os.ReadFile("../../conflist-examples/portmap.conflist"))
			s := newServer(t, k, newVPC(t, 1), map[string][]byte{
				shipped: changed(list, object{"dataPath": path}),
			})
			c := exec.Command(must(filepath.Abs(filepath.Join(programDir, "critest"))),
				"-runtime-endpoint=unix://"+s.path("socket"))
			network.Hear(t, c, "`dataPath` `"+path+"`, containerd", s.node.Do)
			if left := s.leases(t); len(left) != 0 {
				t.Errorf("the leases %v are left", left)
			}
		})
	}
}

// imagesOfCritest returns the images that replace the images of critest: one image with a shell, and images that serve
// a web page.
func imagesOfCritest() map[string]image {
	shell := image{files: map[string]string{"www/index.html": "a page"}, links: map[string]string{}}
	shell.files["bin/busybox"] = string(must(os.ReadFile(must(exec.LookPath("busybox")))))
	for name := range strings.FieldsSeq("cat echo hostname httpd netstat sh sleep sysctl top touch") {
		shell.links["bin/"+name] = "busybox"
	}
	serving := func(port int) image {
		i := shell
		i.entrypoint = []string{"sh", "-c", fmt.Sprintf("echo httpd; exec httpd -f -h /www -p %d", port)}
		return i
	}
	return map[string]image{
		"e2e-test-images/busybox": shell, "e2e-test-images/nginx": serving(80), "e2e-test-images/httpd": serving(80),
		"k8s-staging-cri-tools/hostnet-nginx-amd64": serving(12003),
	}
}
