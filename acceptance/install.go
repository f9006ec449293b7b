// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package main

import (
	"bytes"
	"context"
	"errors"
	"path/filepath"

	sdk "github.com/aws/aws-sdk-go-v2/aws"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/acceptance/ends"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/sim/paths"
)

// The paths on the instances.
const (
	workDir  = "/opt/cni-acceptance" // not below /run, which Debian mounts with noexec
	rootDir  = workDir + "/root"
	endsFile = workDir + "/cni-acceptance-ends"
	binDir   = "/opt/cni/bin"
	confDir  = "/etc/cni/net.d"
	toolFile = "/usr/local/bin/cni-ipvlan-vpc-k8s-tool"
)

const conflistName = "10-cni-ipvlan-vpc-k8s.conflist"

// install copies the files of the container image to an instance, and runs the tool's command "install" there. Then it
// starts the program cni-acceptance-ends on the instance (see package ends).
func (n *node) install(ctx context.Context, o options, conflist []byte, session sdk.Credentials, c *cloud) error {
	if err := n.shell.putTree(o.root, rootDir); err != nil {
		return err
	}
	if err := n.shell.putFile(o.ends, endsFile); err != nil {
		return err
	}
	at := filepath.Join(workDir, conflistName)
	if _, err := n.shell.run("cat >"+at, bytes.NewReader(conflist)); err != nil {
		return err
	}
	_, err := n.shell.run(rootDir+"/usr/bin/cni-ipvlan-vpc-k8s-tool install --root=/ --from="+rootDir+
		" --platform=containerd --conflist="+at, nil)
	if err != nil {
		return err
	}
	if n.ends, err = n.shell.startProgram(ctx, endsFile); err != nil {
		return err
	}
	s := ends.Setup{BinDir: binDir, Conflist: filepath.Join(confDir, conflistName), Tool: toolFile,
		StateDir: workDir + "/cache"}
	if o.profile == "" {
		for _, e := range c.envVariables(session) {
			s.Env = append(s.Env, e[0]+"="+e[1])
		}
	}
	var done bool
	return n.ends.call("Start", s, &done)
}

// conflist returns the network configuration for the instances. It changes the configuration in the file: the ENIs for
// pods have the security group and the tag of the run, and may be in all subnets that the VPC has in the zone. Pods
// cannot reach metadata. reuseIPWait is 0, so a pod may get an address as soon as the last lease of the address has
// ended.
func (p plan) conflist(file, group string) ([]byte, error) {
	return paths.EditConflist(file, func(ours map[string]any) error {
		if ours["type"] != "cni-ipvlan-vpc-k8s" {
			return errors.New("the first plugin must be cni-ipvlan-vpc-k8s")
		}
		delete(ours, "subnetTags")
		ours["secGroupIds"] = []string{group}
		ours["eniTags"] = map[string]string{tagRun: p.run, "Name": p.objectName()}
		ours["hostInterface"] = "auto"
		ours["blockInstanceMetadata"] = true
		ours["reuseIPWait"] = 0
		return nil
	})
}
