// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package packaging

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/sim/ec2sim"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/sim/simtest"
)

// maxPodsKey matches the maximum number of pods in a file for a platform.
var maxPodsKey = regexp.MustCompile(`(?i)max-?pods(?:PerNode)?\\?"?\s*[:=]\s*"?(\d+)`)

// TestMaxPods checks that the files for platforms have the number that "cni-tool maxpods" prints on their instance
// type, an m5.large. Karpenter's nodes start with prefixes. For these nodes, the number must be the number of addresses
// in these prefixes.
func TestMaxPods(t *testing.T) {
	files, err := filepath.Glob("platforms/*")
	if err != nil {
		t.Fatal(err)
	}
	want, checked := maxPodsOf(t, "m5.large"), 0
	for _, file := range files {
		text, want := read(t, file), want
		if m := regexp.MustCompile(`ipPrefixCount: (\d+)`).FindStringSubmatch(text); m != nil {
			prefixes, _ := strconv.Atoi(m[1])
			want = strconv.Itoa(16 * prefixes) // a prefix is a /28
		}
		for _, m := range maxPodsKey.FindAllStringSubmatch(text, -1) {
			if checked++; m[1] != want {
				t.Errorf("%s: %s: want %s pods", file, m[0], want)
			}
		}
	}
	if checked < 8 {
		t.Errorf("%d numbers found", checked)
	}
}

// maxPodsOf returns the output of maxpods on an instance of the type.
func maxPodsOf(t *testing.T, instanceType string) string {
	return onInstance(t, instanceType)("maxpods")
}

// onInstance returns a function that runs the tool on an instance of the type. The function returns the tool's output.
func onInstance(t *testing.T, instanceType string) func(args ...string) string {
	t.Helper()
	sim := simtest.Sim(t, ec2sim.World("vpc-1 10.0.0.0/16\nsubnet-a 10.0.0.0/24"))
	node, err := sim.RunInstance(ec2sim.RunInstance{Type: instanceType, Subnet: "subnet-a"})
	if err != nil {
		t.Fatal(err)
	}
	env := append(os.Environ(), "AWS_ENDPOINT_URL_EC2="+simtest.Serve(t, sim), "CNI_IPVLAN_VPC_STATE_DIR="+t.TempDir(),
		"AWS_EC2_METADATA_SERVICE_ENDPOINT="+simtest.Serve(t, node.Metadata()),
		"AWS_METADATA_SERVICE_TIMEOUT=60") // in seconds, because this machine may be busy
	return func(args ...string) string {
		t.Helper()
		c := exec.Command("../bin/cni-ipvlan-vpc-k8s-tool", args...)
		c.Env = env
		out, err := c.Output()
		if err != nil {
			t.Fatalf("%s: %v", strings.Join(args, " "), err)
		}
		return strings.TrimSpace(string(out))
	}
}
