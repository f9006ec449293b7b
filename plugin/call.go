// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package plugin

import (
	"bytes"
	"encoding/json"
	"io"
	"os"
	"slices"
	"strings"
	"unicode"

	"github.com/containernetworking/cni/pkg/types"
	"github.com/containernetworking/cni/pkg/version"
)

// A call is what a runtime asks for, in the environment and on standard input (CNI
// specification, section 2, "Parameters"). The package skel of the CNI project reads it
// too, and a test holds that both do the same. But skel decodes the configuration anew
// for each thing that it asks of it, and compiles regular expressions: a tenth of all the
// instructions of a plugin.
type call struct {
	verb        string // CNI_COMMAND
	containerID string
	netns       string
	ifName      string
	args        string
	override    bool   // CNI_NETNS_OVERRIDE
	stdin       []byte // without white space
	network     network
}

// A network is the part of a configuration that all plugins have.
type network struct {
	CNIVersion string          `json:"cniVersion"`
	Name       string          `json:"name"`
	PrevResult json.RawMessage `json:"prevResult"`
	Valid      json.RawMessage `json:"cni.dev/valid-attachments"` // present, though null, in each GC of a runtime
}

// The verbs that need a variable.
var (
	additions   = []string{"ADD", "CHECK"}
	attachments = []string{"ADD", "CHECK", "DEL"}
	all         = []string{"ADD", "CHECK", "DEL", "GC", "STATUS"}
)

// readCall reads a call, and says what of it is missing or cannot be. VERSION needs
// nothing but its name.
func readCall(getenv func(string) string, stdin io.Reader) (*call, *types.Error) {
	override := getenv("CNI_NETNS_OVERRIDE")
	c := &call{verb: getenv("CNI_COMMAND"), args: getenv("CNI_ARGS"), override: override == "1" || strings.EqualFold(override, "true")}
	var path string
	var missing []string
	for _, v := range []struct {
		name   string
		value  *string
		verbs  []string // that need it
		wanted func(string) *types.Error
	}{
		{"CNI_CONTAINERID", &c.containerID, attachments, validContainerID},
		{"CNI_NETNS", &c.netns, additions, nil},
		{"CNI_IFNAME", &c.ifName, attachments, validIfName},
		{"CNI_PATH", &path, all, nil},
	} {
		*v.value = getenv(v.name)
		needed := slices.Contains(v.verbs, c.verb)
		if needed && *v.value == "" {
			missing = append(missing, v.name)
		} else if needed && v.wanted != nil {
			if err := v.wanted(*v.value); err != nil {
				return nil, err
			}
		}
	}
	if missing != nil {
		return nil, types.NewError(types.ErrInvalidEnvironmentVariables, "required env variables ["+strings.Join(missing, ",")+"] missing", "")
	}
	if c.verb == "VERSION" {
		return c, nil
	}
	var err error
	if c.stdin, err = io.ReadAll(stdin); err != nil {
		return nil, types.NewError(CodeIO, "error reading from stdin: "+err.Error(), "")
	}
	return c, c.readNetwork()
}

func (c *call) readNetwork() *types.Error {
	var dense bytes.Buffer
	err := json.Compact(&dense, c.stdin)
	if c.stdin = dense.Bytes(); err == nil {
		err = unmarshal(c.stdin, &c.network)
	}
	if err != nil {
		return types.NewError(CodeDecode, "error unmarshall network config: "+err.Error(), "")
	}
	if c.network.Name == "" {
		return types.NewError(CodeInvalid, "missing network name", "")
	}
	if !validName(c.network.Name) {
		return types.NewError(CodeInvalid, "invalid characters found in network name", c.network.Name)
	}
	return nil
}

// dispatch calls the function of the verb. VERSION has none: it prints which versions
// the plugin has.
func dispatch(c *call, stdout io.Writer, add, del, check, gc, status func(*call) *types.Error) *types.Error {
	switch c.verb {
	case "ADD":
		return add(c)
	case "DEL":
		return del(c)
	case "CHECK":
		return check(c)
	case "GC":
		return gc(c)
	case "STATUS":
		return status(c)
	case "VERSION":
		if err := supported.Encode(stdout); err != nil {
			return types.NewError(CodeIO, err.Error(), "")
		}
		return nil
	}
	return types.NewError(types.ErrInvalidEnvironmentVariables, "unknown CNI_COMMAND: "+c.verb, "")
}

// since is the version of the specification that has brought a verb.
var since = map[string]string{"CHECK": "0.4.0", "GC": "1.1.0", "STATUS": "1.1.0"}

// allowed asks whether the configuration is of a version that this plugin has, and
// which has the verb.
func (c *call) allowed() *types.Error {
	v := c.network.CNIVersion
	if v == "" {
		v = "0.1.0" // the last one in which it could be left out
	}
	if first, ok := since[c.verb]; ok {
		has, err := version.GreaterThanOrEqualTo(v, first)
		switch {
		case err != nil:
			return types.NewError(CodeDecode, err.Error(), "")
		case !has:
			return types.NewError(types.ErrIncompatibleCNIVersion, "config version does not allow "+c.verb, "")
		}
		if has, _ := version.GreaterThanOrEqualTo(version.Current(), v); !has {
			return types.NewError(types.ErrIncompatibleCNIVersion, "plugin version does not allow "+c.verb, "")
		}
	}
	if err := (&version.Reconciler{}).Check(v, supported); err != nil {
		return types.NewError(types.ErrIncompatibleCNIVersion, "incompatible CNI versions", err.Details())
	}
	return nil
}

// sameNS refuses to work on the host: CNI_NETNS must not be the namespace that the plugin
// runs in. CNI_NETNS_OVERRIDE turns the question off; then whoever opens the namespace
// refuses it. A DEL is not refused, but works as if there were no namespace: its path may go
// by the number of a process of the pod's, which one of the host's has by now.
//
// The package ns of the CNI project asks the same, and locks a thread for it, for which Go's
// runtime starts another two. But no thread of ours has left the namespace yet.
func (c *call) sameNS() error {
	if c.netns == "" || c.override || c.verb == "DEL" {
		return nil
	}
	pod, err := os.Stat(c.netns)
	if err != nil {
		return nil // whoever needs it will say so
	}
	own, err := os.Stat("/proc/self/ns/net")
	if err != nil {
		return Errorf(types.ErrInvalidNetNS, "", "the plugin's own namespace: %w", err)
	}
	if os.SameFile(pod, own) {
		return Errorf(types.ErrInvalidNetNS, "", "CNI_NETNS %s is the plugin's own namespace", c.netns)
	}
	return nil
}

func validContainerID(id string) *types.Error {
	if validName(id) {
		return nil
	}
	return types.NewError(types.ErrInvalidEnvironmentVariables, "invalid characters in containerID", id)
}

// validName tells whether the name of a network, or a container ID, is an alphanumeric
// character, and then any of those, underscores, dots and hyphens.
func validName(s string) bool {
	for i, r := range s {
		alphanumeric := 'a' <= r && r <= 'z' || 'A' <= r && r <= 'Z' || '0' <= r && r <= '9'
		if !alphanumeric && (i == 0 || !strings.ContainsRune("_.-", r)) {
			return false
		}
	}
	return s != ""
}

func validIfName(name string) *types.Error {
	fault, details := LinkNameFault(name), ""
	if fault == "" {
		return nil
	}
	if len(name) > 15 {
		details = "interface name should be less than 16 characters"
	}
	return types.NewError(types.ErrInvalidEnvironmentVariables, "interface name "+fault, details)
}

// LinkNameFault says why the kernel would not take a name for a link (dev_valid_name), or
// "" if it would: it wants 1 to 15 bytes without blanks, / and :.
func LinkNameFault(name string) string {
	switch {
	case name == "":
		return "is empty"
	case len(name) > 15:
		return "is too long"
	case name == "." || name == "..":
		return "is . or .."
	case strings.ContainsFunc(name, func(r rune) bool { return r == '/' || r == ':' || unicode.IsSpace(r) }):
		return "contains / or : or whitespace characters"
	}
	return ""
}
