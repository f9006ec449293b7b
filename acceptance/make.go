// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package main

import (
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"encoding/base64"
	"encoding/pem"
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"time"

	sdk "github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/ec2"
	"github.com/aws/aws-sdk-go-v2/service/ec2/types"
	"golang.org/x/crypto/ssh"
)

// tagRun is the key of the tag that each object of a run has. The tag's value is the ID of the run.
const tagRun = "cni-ipvlan-vpc-k8s-acceptance"

// madeObjects are the objects that a run has made, and the SSH keys of the run.
type madeObjects struct {
	group   string
	nodes   []*node
	caller  ssh.Signer    // the key with which this command connects to the instances
	host    ssh.PublicKey // the instances' host key
	started time.Time     // when the instances began to cost money; zero if there are none
}

// A node is an instance of the run.
type node struct {
	name         string
	id           string
	addr, public netip.Addr
	shell        *shell
	ends         *client
}

func (p plan) objectName() string { return "cni-acceptance-" + p.run }

// tagSpecs returns the tags for new objects of these types, as a request needs them.
func (p plan) tagSpecs(kinds ...types.ResourceType) []types.TagSpecification {
	var all []types.TagSpecification
	for _, kind := range kinds {
		all = append(all, types.TagSpecification{ResourceType: kind,
			Tags: []types.Tag{{Key: new(tagRun), Value: &p.run}, {Key: new("Name"), Value: new(p.objectName())}}})
	}
	return all
}

// makeObjects makes the key pair, the security group and the instances, records them in m, and waits until the
// instances run.
func (c *cloud) makeObjects(ctx context.Context, o options, p plan, m *madeObjects, out output) error {
	userData, err := m.makeKeys()
	if err != nil {
		return err
	}
	public := ssh.MarshalAuthorizedKey(m.caller.PublicKey())
	_, err = c.ec2.ImportKeyPair(ctx, &ec2.ImportKeyPairInput{KeyName: new(p.objectName()), PublicKeyMaterial: public,
		TagSpecifications: p.tagSpecs(types.ResourceTypeKeyPair)})
	if err != nil {
		return fmt.Errorf("make the key pair: %w", err)
	}
	out.line("made   key pair %s", p.objectName())
	if err := c.makeGroup(ctx, p, m); err != nil {
		return fmt.Errorf("make the security group: %w", err)
	}
	out.line("made   security group %s", m.group)
	if err := c.launch(ctx, o, p, m, userData); err != nil {
		return fmt.Errorf("launch the instances: %w", err)
	}
	for _, n := range m.nodes {
		out.line("made   instance %s, %s", n.id, n.name)
	}
	return c.waitUntilRunning(ctx, m)
}

// shownPatience is how long EC2 may take until it shows a new object.
const shownPatience = time.Minute

// retryUntilShown repeats a call until EC2 finds the new objects that the call names, but not longer than shownPatience
// (EC2 developer guide, "Eventual consistency").
func (c *cloud) retryUntilShown(ctx context.Context, call func() error) error {
	for end := time.Now().Add(shownPatience); ; {
		err := call()
		if !strings.HasSuffix(errorCode(err), ".NotFound") || time.Now().After(end) {
			return err
		}
		if err := c.waitPause(ctx); err != nil {
			return err
		}
	}
}

// makeKeys makes the caller's key and the host key of the instances. It returns the user data of the instances. The
// user data contains the host key.
//
// The test checks the host key when it connects, so that no other machine can pretend to be the instance and get the
// credentials. But programs on the instances, and principals of this account with the permission
// ec2:DescribeInstanceAttribute, can read the private host key in the user data.
//
// The user data also contains a command that schedules a shutdown of the instance. After the shutdown, EC2 terminates
// the instance (see launch). The instance runs the command at the end of its boot, because shutdown(8) needs
// systemd-logind.
func (m *madeObjects) makeKeys() (userData string, err error) {
	_, mine, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		return "", err
	}
	public, host, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		return "", err
	}
	m.caller, err = ssh.NewSignerFromKey(mine)
	if err != nil {
		return "", err
	}
	if m.host, err = ssh.NewPublicKey(public); err != nil {
		return "", err
	}
	private, err := ssh.MarshalPrivateKey(host, "")
	if err != nil {
		return "", err
	}
	text := strings.ReplaceAll(strings.TrimSpace(string(pem.EncodeToMemory(private))), "\n", "\n    ")
	return fmt.Sprintf(`#cloud-config
runcmd:
  - [shutdown, -h, "+%d"]
ssh_deletekeys: true
ssh_keys:
  ed25519_private: |
    %s
  ed25519_public: %s`, int(instancesEndAfter.Minutes()), text, ssh.MarshalAuthorizedKey(m.host)), nil
}

// makeGroup makes the security group of the instances and the pods. The group allows SSH from the caller, and all
// traffic between its members.
func (c *cloud) makeGroup(ctx context.Context, p plan, m *madeObjects) error {
	g, err := c.ec2.CreateSecurityGroup(ctx, &ec2.CreateSecurityGroupInput{GroupName: new(p.objectName()),
		Description: new("acceptance test of cni-ipvlan-vpc-k8s"),
		VpcId:       p.vpc.VpcId, TagSpecifications: p.tagSpecs(types.ResourceTypeSecurityGroup)})
	if err != nil {
		return err
	}
	m.group = *g.GroupId
	return c.retryUntilShown(ctx, func() error {
		_, err := c.ec2.AuthorizeSecurityGroupIngress(ctx, &ec2.AuthorizeSecurityGroupIngressInput{GroupId: g.GroupId,
			IpPermissions: []types.IpPermission{
				{IpProtocol: new("tcp"), FromPort: new(int32(sshPort)), ToPort: new(int32(sshPort)),
					IpRanges: []types.IpRange{{CidrIp: new(p.from.String())}}},
				{IpProtocol: new("-1"), UserIdGroupPairs: []types.UserIdGroupPair{{GroupId: g.GroupId}}},
			}})
		return err
	})
}

// launch launches the instances. The client token prevents further instances if the SDK repeats the call after a lost
// answer.
func (c *cloud) launch(ctx context.Context, o options, p plan, m *madeObjects, userData string) error {
	in := &ec2.RunInstancesInput{
		ClientToken: new(p.objectName()), ImageId: p.image.ImageId, InstanceType: types.InstanceType(p.kind),
		MinCount: new(int32(instances)), MaxCount: new(int32(instances)), KeyName: new(p.objectName()),
		UserData:                          new(base64.StdEncoding.EncodeToString([]byte(userData))),
		InstanceInitiatedShutdownBehavior: types.ShutdownBehaviorTerminate,
		MetadataOptions: &types.InstanceMetadataOptionsRequest{
			HttpTokens: types.HttpTokensStateRequired},
		NetworkInterfaces: []types.InstanceNetworkInterfaceSpecification{{DeviceIndex: new(int32(0)),
			SubnetId: p.subnet.SubnetId,
			Groups:   []string{m.group}, AssociatePublicIpAddress: new(true), DeleteOnTermination: new(true)}},
		TagSpecifications: p.tagSpecs(types.ResourceTypeInstance, types.ResourceTypeNetworkInterface,
			types.ResourceTypeVolume),
	}
	if o.profile != "" {
		in.IamInstanceProfile = &types.IamInstanceProfileSpecification{Name: &o.profile}
	}
	m.started = time.Now() // set before the call: if the answer is lost, the instances still cost money
	var out *ec2.RunInstancesOutput
	err := c.retryUntilShown(ctx, func() (err error) {
		out, err = c.ec2.RunInstances(ctx, in)
		return err
	})
	if errorCode(err) != "" {
		m.started = time.Time{}
	}
	if err != nil {
		return err
	}
	for i, instance := range out.Instances {
		m.nodes = append(m.nodes, &node{name: fmt.Sprintf("node%d", i+1), id: sdk.ToString(instance.InstanceId)})
	}
	return nil
}

// bootPatience is how long the test waits for the instances to run, and then for each instance to accept SSH.
const bootPatience = 5 * time.Minute

func (c *cloud) waitUntilRunning(ctx context.Context, m *madeObjects) error {
	byID := map[string]*node{}
	var ids []string
	for _, n := range m.nodes {
		byID[n.id], ids = n, append(ids, n.id)
	}
	for end := time.Now().Add(bootPatience); ; {
		out, err := c.ec2.DescribeInstances(ctx, &ec2.DescribeInstancesInput{InstanceIds: ids})
		if err != nil && !strings.HasSuffix(errorCode(err), ".NotFound") { // EC2 may not show a new instance yet
			return err
		}
		ready := 0
		for _, i := range instancesOf(out) {
			switch i.State.Name {
			case types.InstanceStateNameRunning:
				n := byID[*i.InstanceId]
				addr, errA := netip.ParseAddr(sdk.ToString(i.PrivateIpAddress))
				public, errP := netip.ParseAddr(sdk.ToString(i.PublicIpAddress))
				if errA != nil || errP != nil {
					return fmt.Errorf("%s runs without a private or a public address: %w", n.id,
						errors.Join(errA, errP))
				}
				n.addr, n.public = addr, public
				ready++
			case types.InstanceStateNamePending:
			default:
				return fmt.Errorf("%s is %s: %s", *i.InstanceId, i.State.Name, sdk.ToString(i.StateTransitionReason))
			}
		}
		if ready == len(ids) {
			return nil
		}
		if time.Now().After(end) {
			return fmt.Errorf("only %d of %d instances run after %v", ready, len(ids), bootPatience)
		}
		if err := c.waitPause(ctx); err != nil {
			return err
		}
	}
}

func instancesOf(out *ec2.DescribeInstancesOutput) []types.Instance {
	var all []types.Instance
	if out != nil {
		for _, r := range out.Reservations {
			all = append(all, r.Instances...)
		}
	}
	return all
}
