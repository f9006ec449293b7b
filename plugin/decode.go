// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package plugin

import (
	"encoding/json"
	"errors"
	"slices"
	"strings"
	"time"

	"github.com/containernetworking/cni/pkg/types"
	types100 "github.com/containernetworking/cni/pkg/types/100"
	"github.com/containernetworking/cni/pkg/version"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/internal/excerpt"
)

// A Pod is the Kubernetes pod of an attachment, as the runtime names it in CNI_ARGS
// (K8S_POD_NAMESPACE, K8S_POD_NAME, K8S_POD_UID).
type Pod struct {
	Namespace, Name, UID string
}

// String returns namespace/name, or "" outside Kubernetes.
func (p Pod) String() string {
	if p.Name == "" {
		return ""
	}
	return p.Namespace + "/" + p.Name
}

// checkNames returns an error if the runtime gives the pod a name that Kubernetes would not give. Without this check,
// an invalid name could get into messages, the registry and the lease log.
func (p Pod) checkNames() error {
	const longest = 253 // length of a name (Kubernetes, "Object Names and IDs")
	strange := func(r rune) bool { return r < '!' || r > '~' || r == '/' }
	for _, v := range []struct{ key, value string }{{argNamespace, p.Namespace}, {argName, p.Name}, {argUID, p.UID}} {
		if len(v.value) > longest || strings.ContainsFunc(v.value, strange) {
			return Errorf(types.ErrInvalidEnvironmentVariables, "",
				"CNI_ARGS: %s: %s: want at most %d bytes of printable ASCII without /",
				v.key, excerpt.Quote(v.value), longest)
		}
	}
	return nil
}

// A validator is a configuration that can check itself: Validate sets its defaults and
// returns all mistakes together.
type validator interface{ Validate() error }

// newRequest makes a request from a call. A DEL must work even with a configuration that an ADD refuses. If such a DEL
// failed, one mistake in an edited configuration would prevent the end of each pod on the node.
func newRequest[C any](c *call) (*Request[C], error) {
	r := &Request[C]{
		Network:    c.network.Name,
		Attachment: Attachment{ContainerID: c.containerID, IfName: c.ifName},
		NetNS:      c.netns,
		Pod:        parseArgs(c.args),
		Began:      time.Now(),
		cniVersion: c.network.CNIVersion,
		stdin:      c.stdin,
	}
	if err := decodeConfig(c.stdin, &r.Config); err != nil && c.verb != "DEL" {
		return nil, err
	}
	err := r.Pod.checkNames()
	if err != nil && c.verb == "ADD" {
		return nil, err
	}
	if c.verb == "GC" {
		if r.Valid, err = c.network.validAttachments(); err != nil {
			return nil, err
		}
	}
	if r.Prev, err = c.network.prevResult(); err != nil && c.verb != "DEL" {
		return nil, err
	}
	return r, nil
}

func decodeConfig[C any](stdin []byte, config *C) error {
	err := unmarshal(stdin, config)
	if err != nil {
		err = decodeMistakes(stdin, config, err)
	} else if v, ok := any(config).(validator); ok {
		err = v.Validate()
	}
	if err != nil {
		return Errorf(CodeInvalid, "", "configuration: %w", err)
	}
	return nil
}

// validAttachments returns the attachments that a GC keeps, or an error if the key cni.dev/valid-attachments is
// missing. If no attachment is valid, the runtime sends the key with an empty list.
func (n *network) validAttachments() (as []Attachment, err error) {
	if n.Valid == nil {
		return nil, Errorf(CodeInvalid,
			"call GC with the key cni.dev/valid-attachments, or leave the work to cni-gc.timer",
			"GC without a list of valid attachments would disconnect all pods of the network %s", n.Name)
	}
	if err := json.Unmarshal(n.Valid, &as); err != nil {
		return nil, Errorf(CodeDecode, "", "decode cni.dev/valid-attachments: %w", err)
	}
	return as, nil
}

// prevResult converts the previous result from any version to the newest version. Without a previous result, it returns
// nil.
func (n *network) prevResult() (*types100.Result, error) {
	if len(n.PrevResult) == 0 || string(n.PrevResult) == "null" {
		return nil, nil
	}
	prev, err := n.parsePrevResult()
	if err != nil {
		return nil, Errorf(CodeDecode, "", "decode prevResult: %w", err)
	}
	var r *types100.Result
	err = recoverPanic(func() error { // NewResultFromResult may panic if a list contains null
		r, err = types100.NewResultFromResult(prev)
		return err
	})
	if err == nil && (slices.Contains(r.Interfaces, nil) || slices.Contains(r.IPs, nil) ||
		slices.Contains(r.Routes, nil)) {
		err = errors.New("it has null in a list")
	}
	if err != nil {
		return nil, Errorf(CodeDecode, "", "convert prevResult: %w", err)
	}
	return r, nil
}

func (n *network) parsePrevResult() (types.Result, error) {
	if slices.Contains(currentVersions, n.CNIVersion) {
		if r, ok := parseResult(n.PrevResult); ok {
			return r, nil
		}
	}
	r, err := version.NewResult(n.CNIVersion, n.PrevResult)
	if err != nil {
		return n.parseUnversioned()
	}
	return r, nil
}

// parseUnversioned decodes a previous result that does not name its version. Before version 1.0.0 of the specification,
// a result need not name its version.
func (n *network) parseUnversioned() (types.Result, error) {
	conf := types.PluginConf{CNIVersion: n.CNIVersion}
	if err := json.Unmarshal(n.PrevResult, &conf.RawPrevResult); err != nil {
		return nil, err
	}
	err := version.ParsePrevResult(&conf)
	return conf.PrevResult, err
}

// The keys of CNI_ARGS that name a pod.
const (
	argNamespace = "K8S_POD_NAMESPACE"
	argName      = "K8S_POD_NAME"
	argUID       = "K8S_POD_UID"
)

// parseArgs reads CNI_ARGS. Runtimes send unknown keys, a semicolon at the end, and values with an equals sign.
// types.LoadArgs would refuse all of these.
func parseArgs(args string) Pod {
	var p Pod
	for pair := range strings.SplitSeq(args, ";") {
		key, value, _ := strings.Cut(pair, "=")
		switch key {
		case argNamespace:
			p.Namespace = value
		case argName:
			p.Name = value
		case argUID:
			p.UID = value
		}
	}
	return p
}
