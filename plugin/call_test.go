// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package plugin

import (
	"fmt"
	"io"
	"maps"
	"os"
	"strings"
	"testing"

	"github.com/containernetworking/cni/pkg/skel"
	"github.com/containernetworking/cni/pkg/types"
	"github.com/google/go-cmp/cmp"
)

// An outcome is the result of a call: an error, or the name of the plugin's function that was called.
type outcome struct {
	Called string
	Err    *types.Error
}

// bySkel returns the outcome of a call that package skel of the CNI project reads.
func bySkel(t *testing.T, env map[string]string, stdin string) (o outcome) {
	t.Helper()
	for k, v := range env {
		t.Setenv(k, v)
	}
	in, err := os.CreateTemp(t.TempDir(), "stdin")
	if err != nil {
		t.Fatal(err)
	}
	out, err := os.OpenFile(os.DevNull, os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer func(in, out *os.File) { os.Stdin, os.Stdout = in, out }(os.Stdin, os.Stdout)
	os.Stdin, os.Stdout = in, out
	defer in.Close()
	defer out.Close()
	if _, err := in.WriteString(stdin); err != nil {
		t.Fatal(err)
	}
	if _, err := in.Seek(0, io.SeekStart); err != nil {
		t.Fatal(err)
	}
	f := func(verb string) func(*skel.CmdArgs) error {
		return func(a *skel.CmdArgs) error {
			o.Called = strings.Join([]string{verb, a.ContainerID, a.Netns, a.IfName, a.Args, string(a.StdinData)}, "|")
			return nil
		}
	}
	o.Err = skel.PluginMainFuncsWithError(skel.CNIFuncs{Add: f("ADD"), Del: f("DEL"), Check: f("CHECK"), GC: f("GC"),
		Status: f("STATUS")}, supportedVersions, "about")
	return o
}

// byUs returns the outcome of a call that this package reads.
func byUs(env map[string]string, stdin string) (o outcome) {
	var c *call
	if c, o.Err = readCall(func(k string) string { return env[k] }, strings.NewReader(stdin)); o.Err != nil {
		return o
	}
	f := func(verb string) func(*call) *types.Error {
		return func(c *call) *types.Error {
			if err := c.checkVersion(); err != nil {
				return err
			}
			o.Called = strings.Join([]string{verb, c.containerID, c.netns, c.ifName, c.args, string(c.stdin)}, "|")
			return nil
		}
	}
	o.Err = dispatch(c, io.Discard, f("ADD"), f("DEL"), f("CHECK"), f("GC"), f("STATUS"))
	return o
}

// TestLikeSkel: any call has the same outcome as with package skel.
func TestLikeSkel(t *testing.T) {
	good := map[string]string{
		"CNI_CONTAINERID": "c1", "CNI_NETNS": "/run/netns/none", "CNI_IFNAME": "eth0", "CNI_PATH": "/bin",
		"CNI_ARGS": "A=b", "CNI_NETNS_OVERRIDE": "",
	}
	try := func(verb, name, stdin string, change map[string]string) {
		t.Run(verb+"/"+name, func(t *testing.T) {
			env := maps.Clone(good)
			env["CNI_COMMAND"] = verb
			maps.Copy(env, change)
			skel, we := bySkel(t, env, stdin), byUs(env, stdin)
			for _, err := range []*types.Error{skel.Err, we.Err} {
				if err != nil {
					err.Msg, _, _ = strings.Cut(err.Msg, " into Go ") // the rest names a type of the program
				}
			}
			if diff := cmp.Diff(skel, we); diff != "" {
				t.Errorf("-skel +we:\n%s", diff)
			}
		})
	}
	const conf = `{"cniVersion":%q,"name":"n"}`
	for _, verb := range []string{"ADD", "DEL", "CHECK", "GC", "STATUS", "VERSION", "NOPE", "AD", "ADD CHECK", "add"} {
		for _, v := range []string{"", "0.1.0", "0.2.0", "0.3.0", "0.3.1", "0.4.0", "0.4", "0.5.0", "1.0.0", "1.0.1",
			"1.1.0", "1.2.0", "2", "x", "1.x", "1.1.0.0"} {
			try(verb, "version "+v, fmt.Sprintf(conf, v), nil)
		}
		for k := range good {
			try(verb, "no "+k, fmt.Sprintf(conf, "1.1.0"), map[string]string{k: ""})
		}
		try(verb, "nothing", fmt.Sprintf(conf, "1.1.0"), map[string]string{"CNI_CONTAINERID": "", "CNI_NETNS": "",
			"CNI_IFNAME": "", "CNI_PATH": ""})
		try(verb, "two mistakes", fmt.Sprintf(conf, "1.1.0"), map[string]string{"CNI_CONTAINERID": "",
			"CNI_IFNAME": "a/b"})
		for _, id := range []string{"0", "a_b.c-d", "-a", ".", "_", "a b", "a/b", "ä", "a\n", "aä",
			strings.Repeat("f", 100)} {
			try(verb, "container "+id, fmt.Sprintf(conf, "1.1.0"), map[string]string{"CNI_CONTAINERID": id})
			try(verb, "network "+id, fmt.Sprintf(`{"cniVersion":"1.1.0","name":%q}`, id), nil)
		}
		for _, name := range []string{"e", ".", "..", "...", "a/b", "a:b", "a b", "a\u2003b", "exactly15bytes_",
			"sixteen_bytes_up"} {
			try(verb, "interface "+name, fmt.Sprintf(conf, "1.1.0"), map[string]string{"CNI_IFNAME": name})
		}
		for _, stdin := range []string{"", "{", "[]", "null", "{}", `{"name":""}`, `{"name":7}`,
			`{"name":null,"cniVersion":"1.1.0"}`, `{"NAME":"n","CNIVERSION":"1.1.0"}`,
			`{"cniVersion":"1.1.0","name":"n"} more`, `{"cniVersion":"1.1.0","name":"n","x":}`,
			`{"cniVersion":"1.1.0","name":"n","name":"m","x":{"name":7}}`,
			`{"cniVersion":"1.1.0","name":"n","prevResult":7,"dns":7}`} {
			try(verb, "stdin "+stdin, stdin, nil)
		}
	}
}

// TestRefusedNames: with Multus, a pod chooses the names of its interfaces. So ADD refuses some names that skel
// accepts. DEL and CHECK accept these names, because an earlier release may have added such an interface.
func TestRefusedNames(t *testing.T) {
	for _, name := range []string{"größe", "a\x1b[2J", "a\u202eb", "lo", "all", "eth%d", "egress4", "tunl0"} {
		for _, verb := range []string{"ADD", "CHECK", "DEL"} {
			env := map[string]string{"CNI_COMMAND": verb, "CNI_CONTAINERID": "c1", "CNI_NETNS": "/run/netns/none",
				"CNI_IFNAME": name, "CNI_PATH": "/bin"}
			o := byUs(env, `{"cniVersion":"1.1.0","name":"n"}`)
			if refused := o.Err != nil &&
				o.Err.Code == types.ErrInvalidEnvironmentVariables; refused != (verb == "ADD") {
				t.Errorf("%s with the interface %q: %v", verb, name, o.Err)
			}
		}
	}
}

// TestVersionIsNoString: for a cniVersion that is not a string, only the text of the error differs from skel's.
func TestVersionIsNoString(t *testing.T) {
	env := map[string]string{"CNI_COMMAND": "ADD", "CNI_CONTAINERID": "c1", "CNI_NETNS": "/run/netns/none",
		"CNI_IFNAME": "eth0", "CNI_PATH": "/bin"}
	o := byUs(env, `{"cniVersion":1,"name":"n"}`)
	if o.Err == nil || o.Err.Code != CodeDecode || !strings.Contains(o.Err.Msg, "cniVersion") {
		t.Errorf("got %+v", o)
	}
}
