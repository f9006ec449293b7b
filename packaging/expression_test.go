// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package packaging

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/sim/ec2sim"
)

// A question is the input of packaging/expression, which describes the fields.
type question struct {
	Program     string
	Expression  string
	Type        string
	DefaultENIs int
	IPsPerENI   int

	config string   // name of the configuration
	answer []string // flags of the tool that print the number for this instance type
	cards  int      // number of network cards of the instance type
}

// expressions has configurations, each with the flags that maxpods gets in addition to --config. If lower is true, an
// expression may give a lower number than maxpods prints for the instance type.
var expressions = map[string]struct {
	keys, flags string
	lower       bool
}{
	"README":       {keys: `"interfaceIndex": 1`},
	"prefixes":     {keys: `"interfaceIndex": 1, "prefixDelegation": true`},
	"boot":         {keys: `"prefixDelegation": true`},
	"boot singly":  {keys: `"interfaceIndex": 0`},
	"maxENIs":      {keys: `"interfaceIndex": 1, "maxENIs": 3`},
	"one ENI":      {keys: `"maxENIs": 1`},
	"none at all":  {keys: `"interfaceIndex": 1, "maxENIs": 1`},
	"both":         {keys: `"interfaceIndex": 1, "prefixDelegation": true, "ipFamilies": ["IPv4", "IPv6"]`},
	"six":          {keys: `"interfaceIndex": 1, "ipFamilies": ["IPv6"]`},
	"six, 250":     {keys: `"interfaceIndex": 1, "ipFamilies": ["IPv6"]`, flags: "--max 250"},
	"maxPods":      {keys: `"interfaceIndex": 1, "maxPods": 110`},
	"host":         {keys: `"interfaceIndex": 1, "maxPods": 110`, flags: "--host-network 3"},
	"no limit":     {keys: `"interfaceIndex": 1, "maxPods": 110`, flags: "--max 4000"},
	"requests":     {keys: `"interfaceIndex": 1, "requests": [{"namespaces": ["*"], "exclusive": true}]`},
	"except":       {keys: `"interfaceIndex": 1, "maxENIs": 4`, flags: "--except-enis 3"},
	"pools":        {keys: `"interfaceIndex": 1, "pools": {"a": {"namespaces": ["a"]}, "b": {"namespaces": ["b"]}}`},
	"one of pools": {keys: `"prefixDelegation": true, "pools": {"a": {"namespaces": ["a"]}}`, flags: "--pool a"},
	"many pools": {keys: `"interfaceIndex": 1, "pools": {"a": {"namespaces": ["a"]}, "b": {"namespaces": ["b"]},
		"c": {"namespaces": ["c"]}, "d": {"namespaces": ["d"]}}`},
	"pools of two kinds": {keys: `"interfaceIndex": 1, "prefixDelegation": true, "pools": {"a": {"namespaces": ["a"],
		"prefixDelegation": false}}`},
	"pools, boot": {keys: `"pools": {"a": {"namespaces": ["a"]}, "b": {"namespaces": ["b"]}}`},
	"pools of two kinds, boot": {keys: `"prefixDelegation": true, "maxENIs": 4, "pools": {"a": {"namespaces": ["a"],
		"prefixDelegation": false}}`, flags: "--host-network 2"},
	"none":       {keys: `"interfaceIndex": 1, "prefixDelegation": true, "provision": "none"`},
	"none, boot": {keys: `"prefixDelegation": true, "provision": "none", "ipFamilies": ["IPv4", "IPv6"]`},
	"assign":     {keys: `"interfaceIndex": 1, "prefixDelegation": true, "provision": "assign"`},
	"warm pools": {keys: `"interfaceIndex": 1, "warm": {"min": 4}, "pools": {"a": {"namespaces": ["a"]}}`, lower: true},
}

// TestMaxPodsExpressions evaluates the expressions that maxpods prints, for each instance type of the simulator. For a
// type with one network card, the result must be the number that maxpods prints for the type. For other types, it must
// not be higher.
func TestMaxPodsExpressions(t *testing.T) {
	tool := onInstance(t, "c5.large")
	var all []question
	for name, c := range expressions {
		all = append(all, questions(t, tool, name, c.keys, c.flags)...)
	}
	equal, numbers := 0, map[string]string{} // numbers: the key is the command line
	for i, answer := range evaluate(t, all) {
		q := all[i]
		line := strings.Join(q.answer, " ")
		if numbers[line] == "" {
			numbers[line] = tool(q.answer...)
		}
		want := numbers[line]
		if q.Program == "nodeadm" && want == "0" {
			want = "1"
		}
		switch {
		case answer == want:
			equal++
		case (expressions[q.config].lower || q.cards > 1) && number(answer) < number(want) && number(answer) >= 0:
		default:
			t.Errorf("%s, %s, %s: %s is %s, want %s", q.config, q.Program, q.Type, q.Expression, answer, want)
		}
	}
	if types := len(ec2sim.Types()); equal < types*len(expressions) {
		t.Errorf("only %d results are equal", equal)
	}
}

// number parses a number of pods. It returns -1 if the text is no number.
func number(s string) int {
	n := -1
	_, _ = fmt.Sscan(s, &n)
	return n
}

// questions returns the questions for one configuration: one for each instance type and each program that takes
// expressions.
func questions(t *testing.T, tool func(...string) string, name, keys, flags string) (all []question) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "10-pods.conflist")
	text := fmt.Sprintf(`{"cniVersion": "1.0.0", "name": "pods", "plugins": [{"type": "cni-ipvlan-vpc-k8s-ipam",
		"secGroupIds": [], %s}]}`, keys)
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	args := append([]string{"maxpods", "--config", file}, strings.Fields(flags)...)
	for _, program := range []string{"karpenter", "nodeadm"} {
		if program == "karpenter" && strings.Contains(keys, `"none"`) {
			continue // with provision "none", maxpods has no expression for Karpenter
		}
		var of struct{ Expression string }
		printed := tool(append(slices.Clone(args), "--format", program, "--output", "json")...)
		if err := json.Unmarshal([]byte(printed), &of); err != nil {
			t.Fatalf("%s: %v: %s", name, err, printed)
		}
		for _, kind := range ec2sim.Types() {
			enis := kind.ENIs
			if len(kind.Cards) > 0 {
				enis = kind.Cards[0]
			}
			all = append(all, question{program, of.Expression, kind.Name, enis, kind.IPv4PerENI, name,
				append(slices.Clone(args), "--instance-type", kind.Name), max(len(kind.Cards), 1)})
		}
	}
	return all
}

// evaluate returns the results of the expressions. It runs a program in a separate module, because only this program
// needs the CEL library.
func evaluate(t *testing.T, all []question) (answers []string) {
	t.Helper()
	in, err := json.Marshal(all)
	if err != nil {
		t.Fatal(err)
	}
	c := exec.Command("go", "run", "-C", "expression", ".")
	c.Stdin, c.Stderr = bytes.NewReader(in), os.Stderr
	out, err := c.Output()
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(out, &answers); err != nil || len(answers) != len(all) {
		t.Fatalf("%d answers to %d questions: %v", len(answers), len(all), err)
	}
	return answers
}
