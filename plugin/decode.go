// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package plugin

import (
	"encoding/json"
	"strings"

	"github.com/containernetworking/cni/pkg/skel"
	"github.com/containernetworking/cni/pkg/types"
	types100 "github.com/containernetworking/cni/pkg/types/100"
	"github.com/containernetworking/cni/pkg/version"
)

// A Pod is the Kubernetes pod of an attachment, as the runtime names it in
// CNI_ARGS (K8S_POD_NAMESPACE, K8S_POD_NAME, K8S_POD_UID).
type Pod struct {
	Namespace, Name, UID string
}

// String is namespace/name, or empty outside Kubernetes.
func (p Pod) String() string {
	if p.Name == "" {
		return ""
	}
	return p.Namespace + "/" + p.Name
}

// A validator is a configuration that knows what is right: Validate sets its
// defaults, and returns every mistake at once.
type validator interface{ Validate() error }

// decode reads a request out of the environment and standard input that skel
// collected. A DEL must work with what an ADD would refuse, or a mistake in an edited
// configuration would keep every pod of the node from ending.
func decode[C any](verb string, args *skel.CmdArgs) (_ *Request[C], cniVersion string, err error) {
	var base types.PluginConf
	if err := json.Unmarshal(args.StdinData, &base); err != nil {
		return nil, version.Current(), Errorf(CodeDecode, "", "decode network configuration: %w", err)
	}
	cniVersion = base.CNIVersion
	if err := sameNS(args); err != nil {
		return nil, cniVersion, err
	}
	req := &Request[C]{
		Network:    base.Name,
		Attachment: Attachment{ContainerID: args.ContainerID, IfName: args.IfName},
		NetNS:      args.Netns,
		Pod:        parseArgs(args.Args),
		Valid:      base.ValidAttachments,
	}
	if err := decodeConfig(args.StdinData, &req.Config); err != nil && verb != "DEL" {
		return nil, cniVersion, err
	}
	if verb == "GC" && !hasKey(args.StdinData, "cni.dev/valid-attachments") {
		return nil, cniVersion, Errorf(CodeInvalid, "call GC with the key cni.dev/valid-attachments, or leave it to the registry-gc timer",
			"GC without a list of valid attachments would end every pod of network %s", base.Name)
	}
	if req.Prev, err = prevResult(&base); err != nil && verb != "DEL" {
		return nil, cniVersion, err
	}
	return req, cniVersion, nil
}

// decodeConfig decodes what is the plugin's own of the configuration.
func decodeConfig(stdin []byte, config any) error {
	if err := json.Unmarshal(stdin, config); err != nil {
		return Errorf(CodeInvalid, "", "decode plugin configuration: %w", err)
	}
	v, ok := config.(validator)
	if !ok {
		return nil
	}
	if err := v.Validate(); err != nil {
		return Errorf(CodeInvalid, "", "configuration: %w", err)
	}
	return nil
}

// prevResult converts the previous result, of any version, to the newest one.
func prevResult(base *types.PluginConf) (*types100.Result, error) {
	if base.RawPrevResult == nil {
		return nil, nil
	}
	if err := version.ParsePrevResult(base); err != nil {
		return nil, Errorf(CodeDecode, "", "decode prevResult: %w", err)
	}
	r, err := types100.NewResultFromResult(base.PrevResult)
	if err != nil {
		return nil, Errorf(CodeDecode, "", "convert prevResult: %w", err)
	}
	return r, nil
}

// parseArgs reads CNI_ARGS. It does so itself because types.LoadArgs refuses
// unknown keys, a trailing semicolon, and values that contain an equals sign, all of
// which runtimes send.
func parseArgs(args string) Pod {
	var p Pod
	for pair := range strings.SplitSeq(args, ";") {
		key, value, _ := strings.Cut(pair, "=")
		switch key {
		case "K8S_POD_NAMESPACE":
			p.Namespace = value
		case "K8S_POD_NAME":
			p.Name = value
		case "K8S_POD_UID":
			p.UID = value
		}
	}
	return p
}

// hasKey tells an absent key from an empty or null one, which a decoded slice cannot.
func hasKey(object []byte, key string) bool {
	var keys map[string]json.RawMessage
	if json.Unmarshal(object, &keys) != nil {
		return false
	}
	_, ok := keys[key]
	return ok
}
