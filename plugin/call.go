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

	"github.com/containernetworking/cni/pkg/types"
	"github.com/containernetworking/cni/pkg/version"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/nl/ifname"
)

// A call is one command of a runtime. The plugin reads the command from its environment and from standard input (CNI
// specification, section 2, "Parameters"). We do not use the package skel of the CNI project. For each value that skel
// needs from the configuration, skel decodes the whole configuration again. skel also compiles regular expressions. For
// the cost of this work, see the table in docs/design.md, "Written by hand". A test compares this code with skel.
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

// A network has the keys that all plugins read in a network configuration.
//
//codec:describe exported
type network struct {
	Valid      json.RawMessage `json:"cni.dev/valid-attachments"` // a runtime's GC always has this key; it may be null
	CNIVersion string          `json:"cniVersion"`
	Name       string          `json:"name"`
	PrevResult json.RawMessage `json:"prevResult"`
}

// The commands that need a certain variable of the environment, see readCall.
var (
	verbsWithNS         = []string{"ADD", "CHECK"}
	verbsWithAttachment = []string{"ADD", "CHECK", "DEL"}
	allVerbs            = []string{"ADD", "CHECK", "DEL", "GC", "STATUS"}
)

// readCall reads a call. The error names the missing variables, or the invalid value. VERSION needs only the variable
// CNI_COMMAND.
func readCall(getenv func(string) string, stdin io.Reader) (*call, *types.Error) {
	override := getenv("CNI_NETNS_OVERRIDE")
	c := &call{verb: getenv("CNI_COMMAND"), args: getenv("CNI_ARGS"), override: override == "1" ||
		strings.EqualFold(override, "true")}
	var path string
	var missing []string
	for _, v := range []struct {
		name   string
		value  *string
		verbs  []string // the commands that need the variable
		wanted func(string) *types.Error
	}{
		{"CNI_CONTAINERID", &c.containerID, verbsWithAttachment, checkContainerID},
		{"CNI_NETNS", &c.netns, verbsWithNS, nil},
		{"CNI_IFNAME", &c.ifName, verbsWithAttachment, c.checkIfName},
		{"CNI_PATH", &path, allVerbs, nil},
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
		return nil, types.NewError(types.ErrInvalidEnvironmentVariables, "required env variables ["+
			strings.Join(missing, ",")+"] missing", "")
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
	err := c.compact()
	if err == nil {
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

func (c *call) compact() error {
	var dense bytes.Buffer
	err := json.Compact(&dense, c.stdin)
	c.stdin = dense.Bytes()
	return err
}

// dispatch calls the function of the command. For VERSION, it prints the versions that the plugin supports.
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
		if err := supportedVersions.Encode(stdout); err != nil {
			return types.NewError(CodeIO, err.Error(), "")
		}
		return nil
	}
	return types.NewError(types.ErrInvalidEnvironmentVariables, "unknown CNI_COMMAND: "+c.verb, "")
}

// firstVersion maps a command to the version of the CNI specification in which the command appeared. A command that is
// not in this map exists in all versions.
var firstVersion = map[string]string{"CHECK": "0.4.0", "GC": "1.1.0", "STATUS": "1.1.0"}

// checkVersion returns an error if this plugin does not support the configuration's version, or if this version does
// not have the call's command.
func (c *call) checkVersion() *types.Error {
	v := c.network.CNIVersion
	if v == "" {
		v = "0.1.0" // the last version in which cniVersion could be left out
	}
	if first, ok := firstVersion[c.verb]; ok {
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
	if err := (&version.Reconciler{}).Check(v, supportedVersions); err != nil {
		return types.NewError(types.ErrIncompatibleCNIVersion, "incompatible CNI versions", err.Details())
	}
	return nil
}

// refuseNodesNS returns an error if CNI_NETNS is the node's namespace, in which the plugin runs. Some plugins check
// this themselves, see the field Refuses of [Commands]. CNI_NETNS_OVERRIDE turns off this check, but not the later
// check in OpenOther of package nl. refuseNodesNS never refuses a DEL. In a DEL, CNI_NETNS may be a path in /proc with
// the PID of a pod's process that has ended. If a process of the node has this PID now, the path leads to the node's
// namespace. OpenOther then reports the namespace as missing, so the DEL works as if the pod had no namespace.
//
// The package ns of the CNI project locks a thread for this check, and then Go's runtime starts two more threads. No
// lock is needed, because no thread of this process has left the node's namespace yet.
func (c *call) refuseNodesNS() error {
	if c.netns == "" || c.override || c.verb == "DEL" {
		return nil
	}
	pod, err := os.Stat(c.netns)
	if err != nil {
		return nil // the code that needs the namespace reports that the namespace is missing
	}
	own, err := os.Stat("/proc/self/ns/net")
	if err != nil {
		return Errorf(types.ErrInvalidNetNS, "", "read the plugin's own network namespace: %w", err)
	}
	if os.SameFile(pod, own) {
		return NodesNS(c.netns)
	}
	return nil
}

// NodesNS returns the error for a CNI_NETNS whose path leads to the node's namespace.
func NodesNS(path string) error {
	return Errorf(types.ErrInvalidNetNS, "", "CNI_NETNS %s is the network namespace of the node, not of a pod", path)
}

func checkContainerID(id string) *types.Error {
	if validName(id) {
		return nil
	}
	return types.NewError(types.ErrInvalidEnvironmentVariables, "invalid characters in containerID", id)
}

// validName reports whether a name of a network, or a container ID, is valid. A valid name begins with a letter or a
// digit, and letters, digits, underscores, dots and hyphens may follow.
func validName(s string) bool {
	for i, r := range s {
		alphanumeric := 'a' <= r && r <= 'z' || 'A' <= r && r <= 'Z' || '0' <= r && r <= '9'
		if !alphanumeric && (i == 0 || !strings.ContainsRune("_.-", r)) {
			return false
		}
	}
	return s != ""
}

// checkIfName refuses a name that the kernel does not accept. For an ADD, it also refuses names that a pod must not
// choose (ifname.Refused), because with Multus, the pod chooses the name. A DEL and a CHECK accept these names, because
// ADDs of an earlier release accepted them.
func (c *call) checkIfName(name string) *types.Error {
	fault, details := ifname.Fault(name), ""
	if fault == "" && c.verb == "ADD" {
		if fault = ifname.Refused(name); fault != "" {
			details = "interface name should have " + ifname.Wanted
		}
	}
	if fault == "" {
		return nil
	}
	if len(name) > ifname.Longest {
		details = "interface name should be less than 16 characters"
	}
	return types.NewError(types.ErrInvalidEnvironmentVariables, "interface name "+fault, details)
}
