// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package plugin_test

import (
	"bufio"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
)

// TestSteps counts the statements that our programs execute for a text that a pod writes. For a text that is four times
// as long, an ADD or DEL may execute at most four times as many statements. The test uses the real programs, built with
// counters.
func TestSteps(t *testing.T) {
	s := buildSteps(t)
	fill := func(text string) func(n int) string {
		return func(n int) string { return strings.Repeat(text, n/len(text)) }
	}
	list := func(element string) func(n int) string {
		return func(n int) string { return "[" + strings.Repeat(element+",", n/(len(element)+1)) + element + "]" }
	}
	numbered := func(format string) func(n int) string {
		return func(n int) string {
			var b strings.Builder
			for i := 0; b.Len() < n; i++ {
				fmt.Fprintf(&b, format, i)
			}
			return b.String()
		}
	}
	const nics, egress = "cni-ipvlan-vpc-k8s/nics", "cni-ipvlan-vpc-k8s/egress"
	annotation := func(key string, text func(int) string) func(int) call {
		return func(n int) call { return call{annotations: map[string]string{key: text(n)}} }
	}
	runtime := func(key, format string, text func(int) string) func(int) call {
		return func(n int) call { return call{member: fmt.Sprintf("%q: {%s}", key, fmt.Sprintf(format, text(n)))} }
	}
	for name, input := range map[string]func(n int) call{
		"objects": annotation(nics, list(`{}`)),
		"objects with names": annotation(nics, func(n int) string {
			return "[" + numbered(`{"name":"n%d"},`)(n) + "{}]"
		}),
		"unknown keys": annotation(nics, func(n int) string {
			return "[{" + numbered(`"k%d":1,`)(n) + `"k":1}]`
		}),
		"deep":     annotation(nics, fill("[")),
		"a number": annotation(nics, func(n int) string { return `[{"subnet":` + fill("7")(n) + "}]" }),
		"a name":   annotation(nics, func(n int) string { return `[{"name":"` + fill(`\u0000`)(n) + `"}]` }),
		"groups": annotation(nics, func(n int) string {
			return `[{"securityGroups":` + list(`"x"`)(n) + "}]"
		}),
		"a pool":         annotation("cni-ipvlan-vpc-k8s/pool", fill("p")),
		"egresses":       annotation(egress, fill("out,")),
		"other egresses": annotation(egress, numbered("e%d,")),
		"annotations": func(n int) call {
			all := map[string]string{}
			for i := range n / 20 {
				all[fmt.Sprintf("example.com/%d", i)] = `a "b" ü`
			}
			return call{annotations: all}
		},
		"escapes": annotation("example.com/a", fill(`\"`)),
		"ips":     runtime("runtimeConfig", `"ips": %s`, list(`"10.0.0.1"`)),
		"mac":     runtime("runtimeConfig", `"mac": "%s"`, fill("x")),
		"device":  runtime("runtimeConfig", `"deviceID": "eni-%s"`, fill("0")),
		"aliases": runtime("runtimeConfig", `"aliases": %s`, list(`"a"`)),
		"args":    runtime("args", `"cni": {%s"k": 1}`, numbered(`"k%d":1,`)),
		"deep args": runtime("args", `"cni": {"x": %s`, func(n int) string {
			n = min(n, 9000) // libcni parses this first, and accepts no deeper nesting
			return fill("[")(n) + fill("]")(n) + "}"
		}),
		"pod":   func(n int) call { return call{args: "K8S_POD_NAME=" + fill("p")(n/4)} },
		"pairs": func(n int) call { return call{args: "K8S_POD_NAME=p" + fill(";A=b")(n/4)} },
	} {
		t.Run(name, func(t *testing.T) {
			for _, run := range []struct {
				program, verb, namespace string
				few                      int
			}{
				{"cni-ipvlan-vpc-k8s", "ADD", "shop", 64 << 10},
				{"cni-ipvlan-vpc-k8s", "ADD", "db", 7 << 10}, // the pod may ask, so its text is parsed
				{"cni-ipvlan-vpc-k8s", "DEL", "db", 64 << 10},
				{"cni-ipvlan-vpc-k8s-egress", "ADD", "db", 64 << 10},
				{"cni-ipvlan-vpc-k8s-egress", "DEL", "db", 64 << 10},
			} {
				few, many := input(run.few), input(4*run.few)
				few.namespace, many.namespace = run.namespace, run.namespace
				small, _ := s.count(t, run.program, run.verb, few)
				large, sent := s.count(t, run.program, run.verb, many)
				t.Logf("%-26s %s %-4s %8d steps, %8d of four times the text", run.program, run.verb, run.namespace,
					small, large)
				if large > small*42/10 { // 2/10 more, because longer numbers have more digits
					t.Errorf("%s %s: four times the text cost %d steps and not %d", run.program, run.verb, large, small)
				}
				if most := sent*50 + 100000; large > most {
					t.Errorf("%s %s: %d steps, want %d at most", run.program, run.verb, large, most)
				}
			}
		})
	}
}

// A call has the parts of a request in which the commands differ.
type call struct {
	namespace   string
	annotations map[string]string
	member      string // a member of the configuration
	args        string // the value of CNI_ARGS
}

// A steps has programs that are built with counters.
type steps struct{ bin, state, covdata string }

func buildSteps(t *testing.T) steps {
	t.Helper()
	covdata, err := exec.Command("go", "tool", "-n", "covdata").Output()
	if err != nil {
		t.Fatal(err)
	}
	s := steps{t.TempDir(), t.TempDir(), strings.TrimSpace(string(covdata))}
	cmd := exec.Command("go", "build", "-cover", "-covermode=count",
		"-coverpkg=github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/...", "-o", s.bin,
		"./chain/cni-ipvlan-vpc-k8s", "./egress/cni-ipvlan-vpc-k8s-egress")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v: %v\n%s", cmd, err, out)
	}
	return s
}

// count runs a command. It returns how many statements the program has executed, and how many bytes the program got.
func (s steps) count(t *testing.T, program, verb string, c call) (executions, sent int) {
	t.Helper()
	if c.args == "" {
		c.args = "K8S_POD_NAME=cart-0"
	}
	if c.annotations != nil {
		text, err := json.Marshal(c.annotations)
		if err != nil {
			t.Fatal(err)
		}
		c.member = fmt.Sprintf(`"runtimeConfig":{"io.kubernetes.cri.pod-annotations":%s}`, text)
	}
	if c.member != "" {
		c.member = "," + c.member
	}
	conf := `{"cniVersion":"1.0.0","name":"pods","type":"t","secGroupIds":[],"addTimeout":1,` +
		`"pools":{"db":{"namespaces":["db"]}},"requests":[{"namespaces":["db"],"ips":true}],` +
		`"egress":{"out":{"gateways":["172.20.0.77"],"destinations":["203.0.113.0/24"],"selectable":["db"]}},` +
		`"prevResult":{"cniVersion":"1.0.0","interfaces":[{"name":"eth0","sandbox":"/run/netns/absent"}],"ips":[{"address":"10.0.0.7/24","interface":0}]}` + c.member + `}`
	counters := t.TempDir()
	cmd := exec.Command(filepath.Join(s.bin, program))
	cmd.Env = append(os.Environ(), "GOCOVERDIR="+counters, "CNI_COMMAND="+verb, "CNI_CONTAINERID=c1",
		"CNI_NETNS=/run/netns/absent",
		"CNI_IFNAME=eth0", "CNI_PATH="+s.state, "CNI_ARGS=K8S_POD_NAMESPACE="+c.namespace+";"+c.args,
		"CNI_IPVLAN_VPC_STATE_DIR="+s.state)
	cmd.Stdin = strings.NewReader(conf)
	out, err := cmd.Output()
	if len(out) > 64<<10 {
		t.Errorf("%s %s: an answer of %d bytes", program, verb, len(out))
	}
	if verb == "DEL" && err != nil {
		t.Errorf("%s DEL: %v: %.300s", program, err, out)
	}
	return s.executed(t, counters), len(conf) + len(c.args)
}

// executed returns the sum of a program's counters: for each block, its number of statements times its executions.
func (s steps) executed(t *testing.T, counters string) (sum int) {
	t.Helper()
	file := filepath.Join(counters, "text")
	if out, err := exec.Command(s.covdata, "textfmt", "-i="+counters, "-o="+file).CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	f, err := os.Open(file)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for lines := bufio.NewScanner(f); lines.Scan(); {
		fields := strings.Fields(lines.Text())
		if len(fields) != 3 {
			continue // the first line, which names the mode
		}
		statements, _ := strconv.Atoi(fields[1])
		times, _ := strconv.Atoi(fields[2])
		sum += statements * times
	}
	if sum == 0 {
		t.Fatal("the program has counted nothing")
	}
	return sum
}
