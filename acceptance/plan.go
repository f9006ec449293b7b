// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package main

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/netip"
	"os"
	"slices"
	"strings"
	"time"

	sdk "github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/ec2"
	"github.com/aws/aws-sdk-go-v2/service/ec2/types"
)

// A plan says which objects a run will make, and where in AWS.
type plan struct {
	run    string // the ID of the run
	caller string
	region string
	vpc    types.Vpc
	subnet types.Subnet
	image  types.Image
	kind   string
	from   netip.Prefix // the addresses that may connect by SSH
	nodes  string       // a text that says which credentials the instances get
	others leftovers    // objects of other runs
}

// plan makes the plan of a run. It makes nothing in EC2.
func (c *cloud) plan(ctx context.Context, o options) (plan, error) {
	p := plan{run: time.Now().UTC().Format("20060102-150405-") + strings.ToLower(rand.Text()[:8]), caller: c.caller,
		region: c.region, kind: o.kind, from: o.from}
	for _, file := range []string{o.root, o.ends, o.conflist} {
		if _, err := os.Stat(file); err != nil {
			return p, fmt.Errorf("%w: run make test-ec2, which makes the files", err)
		}
	}
	p.nodes = "temporary credentials that have your own permissions"
	if o.profile != "" {
		p.nodes = "the instance profile " + o.profile
	}
	var err error
	if p.subnet, err = c.findSubnet(ctx, o); err != nil {
		return p, err
	}
	out, err := c.ec2.DescribeVpcs(ctx, &ec2.DescribeVpcsInput{VpcIds: []string{*p.subnet.VpcId}})
	if err != nil {
		return p, err
	}
	p.vpc = out.Vpcs[0]
	if p.image, err = c.findImage(ctx, o); err != nil {
		return p, err
	}
	if p.others, err = c.findLeftovers(ctx, "", nil); err != nil {
		return p, err
	}
	if !p.from.IsValid() {
		a, err := callerAddress(ctx, o.whoami)
		if err != nil {
			return p, fmt.Errorf("find out the address of this machine, as the internet sees it: %w (or use -from)",
				err)
		}
		p.from = netip.PrefixFrom(a, a.BitLen())
	}
	return p, nil
}

// findSubnet returns the subnet that -subnet names, or a default subnet. EC2 must offer the instance type in the zone
// of the subnet.
func (c *cloud) findSubnet(ctx context.Context, o options) (types.Subnet, error) {
	in := &ec2.DescribeSubnetsInput{Filters: newFilters("default-for-az", "true")}
	if o.subnet != "" {
		in = &ec2.DescribeSubnetsInput{SubnetIds: []string{o.subnet}}
	}
	found, err := c.ec2.DescribeSubnets(ctx, in)
	if err != nil {
		return types.Subnet{}, err
	}
	offered, err := c.ec2.DescribeInstanceTypeOfferings(ctx, &ec2.DescribeInstanceTypeOfferingsInput{
		LocationType: types.LocationTypeAvailabilityZone, Filters: newFilters("instance-type", o.kind)})
	if err != nil {
		return types.Subnet{}, err
	}
	slices.SortFunc(found.Subnets, func(a, b types.Subnet) int {
		return cmp.Compare(*a.AvailabilityZone, *b.AvailabilityZone)
	})
	for _, s := range found.Subnets {
		if slices.ContainsFunc(offered.InstanceTypeOfferings, func(t types.InstanceTypeOffering) bool {
			return sdk.ToString(t.Location) == *s.AvailabilityZone
		}) {
			return s, nil
		}
	}
	if len(found.Subnets) == 0 {
		return types.Subnet{}, fmt.Errorf("%s has no default VPC with a default subnet: use -subnet", c.region)
	}
	return types.Subnet{}, fmt.Errorf("no zone of the subnets has %s: use -type or -subnet", o.kind)
}

// Debian's AWS account, and the names of its images: https://wiki.debian.org/Cloud/AmazonEC2Image/Trixie.
const (
	debianOwner = "136693071363"
	debianName  = "debian-13-amd64-*"
)

// findImage returns the image that -image names. Without -image, it returns the newest image of Debian.
func (c *cloud) findImage(ctx context.Context, o options) (types.Image, error) {
	in := &ec2.DescribeImagesInput{Owners: []string{debianOwner}, Filters: newFilters("name", debianName,
		"architecture", "x86_64", "state", "available")}
	if o.image != "" {
		in = &ec2.DescribeImagesInput{ImageIds: []string{o.image}}
	}
	out, err := c.ec2.DescribeImages(ctx, in)
	if err != nil {
		return types.Image{}, err
	}
	if len(out.Images) == 0 {
		return types.Image{}, fmt.Errorf("%s has no image %s of %s: use -image and -user", c.region,
			debianName, debianOwner)
	}
	// CreationDates are ISO 8601 texts, so their order as texts is their order in time.
	newest := slices.MaxFunc(out.Images, func(a, b types.Image) int {
		return cmp.Compare(sdk.ToString(a.CreationDate), sdk.ToString(b.CreationDate))
	})
	return newest, checkImage(newest)
}

// checkImage returns an error if the programs do not run on the image, or if an instance of the image would leave a
// volume behind.
func checkImage(i types.Image) error {
	if i.Architecture != types.ArchitectureValuesX8664 {
		return fmt.Errorf("image %s is for %s, and the programs are for x86_64: use another -image",
			sdk.ToString(i.ImageId), i.Architecture)
	}
	for _, d := range i.BlockDeviceMappings {
		if d.Ebs != nil && !sdk.ToBool(d.Ebs.DeleteOnTermination) {
			return fmt.Errorf("image %s has a volume, %s, that outlives its instance: use another -image",
				sdk.ToString(i.ImageId), sdk.ToString(d.DeviceName))
		}
	}
	return nil
}

func (p plan) gigabytes() int {
	all := 0
	for _, d := range p.image.BlockDeviceMappings {
		if d.Ebs != nil {
			all += int(sdk.ToInt32(d.Ebs.VolumeSize))
		}
	}
	return all
}

// callerAddress asks the server at the URL for the address of this machine, as the internet sees it.
func callerAddress(ctx context.Context, url string) (netip.Addr, error) {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	q, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return netip.Addr{}, err
	}
	a, err := http.DefaultClient.Do(q)
	if err != nil {
		return netip.Addr{}, err
	}
	defer a.Body.Close()
	body, err := io.ReadAll(io.LimitReader(a.Body, 100))
	if err != nil {
		return netip.Addr{}, err
	}
	return parseAddress(string(body))
}

func parseAddress(body string) (netip.Addr, error) {
	a, err := netip.ParseAddr(strings.TrimSpace(body))
	if err == nil && !a.Is4() {
		err = errors.New("it is no IPv4 address: " + a.String())
	}
	return a, err
}

func newFilters(pairs ...string) []types.Filter {
	var all []types.Filter
	for p := range slices.Chunk(pairs, 2) {
		all = append(all, types.Filter{Name: &p[0], Values: p[1:]})
	}
	return all
}

func (p plan) printPlan(out output) {
	out.line("Run %s, as %s", p.run, p.caller)
	out.line("  where         %s, %s, %s (%s), %s (%s)", p.region, sdk.ToString(p.subnet.AvailabilityZone),
		sdk.ToString(p.vpc.VpcId), sdk.ToString(p.vpc.CidrBlock), sdk.ToString(p.subnet.SubnetId),
		sdk.ToString(p.subnet.CidrBlock))
	out.line("  instances     %d x %s of %s (%s), with a public address and %d GB each", instances, p.kind,
		sdk.ToString(p.image.ImageId),
		sdk.ToString(p.image.Name), p.gigabytes())
	out.line("  credentials   the instances call EC2 with %s", p.nodes)
	out.line("  also          a key pair; a security group that lets in SSH from %s, and all traffic "+
		"between its members", p.from)
	out.line("  in the test   ENIs: one for the comparison, then up to two for pods on each instance")
	out.line("  tag           everything has %s=%s, and is deleted at the end", tagRun, p.run)
	out.line("  time limit    the instances end by themselves after %v, even if this machine is gone",
		instancesEndAfter)
	out.line("  cost          %s", p.cost(expectedDuration))
	out.line("                %s", p.mostCost())
	if !p.others.isEmpty() {
		out.line("  other runs    objects of %s remain: %s", strings.Join(p.others.runIDs(), ", "), p.others)
		out.line("                if none of these runs is still running, delete the objects: %s", cleanCommand(""))
	}
}
