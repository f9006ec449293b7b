// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package compare_test

import (
	"bytes"
	"io"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/acceptance/compare"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/aws"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/sim/ec2sim"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/sim/simtest"
)

// place returns a simulator as a Place. Before the two instances of the Place, it launches as many other instances as
// the argument others says. The simulator's IDs and addresses depend on this number.
func place(t *testing.T, name string, others int) compare.Place {
	t.Helper()
	c := ec2sim.World(`
		vpc-1    10.0.0.0/16
		subnet-1 10.0.0.0/20 public
		vpc-2    10.9.0.0/16
		pcx-1    vpc-1 vpc-2`)
	c.SecurityGroups = []string{"sg-1"} // EC2 refuses all other groups
	sim := simtest.Sim(t, c)
	var all []*ec2sim.Instance
	for range others + 2 {
		i, err := sim.RunInstance(ec2sim.RunInstance{Type: "t3.small", Subnet: "subnet-1",
			SecurityGroups: []string{"sg-1"}})
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, i)
	}
	node, other := all[others], all[others+1]
	return compare.Place{
		Name: name, EC2: ec2sim.Direct{Handler: sim}, EC2URL: "http://ec2.invalid",
		Metadata: ec2sim.Direct{Handler: node.Metadata()}, MetadataURL: "http://metadata.invalid",
		Node: node.ID, Other: other.ID, Type: "t3.small", Zone: "us-east-1a", VPC: "vpc-1", Subnet: "subnet-1",
		Group:    "sg-1",
		NodeAddr: node.ENIs()[0].Addrs[0], OtherAddr: other.ENIs()[0].Addrs[0], Account: "123456789012",
	}
}

func run(t *testing.T, real compare.Place) (compare.Table, error) {
	t.Helper()
	simtest.Credentials(t)
	return compare.Run(t.Context(), real, place(t, "simulated", 0),
		compare.Options{Tags: map[string]string{"run": "r1"}})
}

type changed struct {
	aws.HTTPClient
	change func(call, body string) (string, int)
}

func (c changed) Do(q *http.Request) (*http.Response, error) {
	sent, err := io.ReadAll(q.Body)
	if err != nil {
		return nil, err
	}
	q.Body = io.NopCloser(bytes.NewReader(sent))
	a, err := c.HTTPClient.Do(q)
	if err != nil {
		return nil, err
	}
	body, err := io.ReadAll(a.Body)
	if err != nil {
		return nil, err
	}
	text, status := c.change(string(sent), string(body))
	if status != 0 {
		a.StatusCode = status
	}
	a.Body, a.ContentLength = io.NopCloser(strings.NewReader(text)), int64(len(text))
	return a, nil
}

// TestAlike compares two simulators whose IDs and addresses differ. The comparison must find no other difference.
func TestAlike(t *testing.T) {
	table, err := run(t, place(t, "real", 3))
	if err != nil {
		t.Fatal(err)
	}
	// The two subnets also differ in their numbers of free addresses. This difference must not fail the test.
	free := func(r compare.Row) bool { return r.Field == "subnetSet.item.availableIpAddressCount" && !r.Fails() }
	if rows := slices.DeleteFunc(table.Rows, free); len(rows) > 0 {
		t.Errorf("simulators that differ: %+v", rows)
	}
	if table.Fields < 500 {
		t.Errorf("%d fields were compared", table.Fields)
	}
	want := []string{"AssignIpv6Addresses", "AssignPrivateIpAddresses", "AttachNetworkInterface",
		"CreateNetworkInterface", "DeleteNetworkInterface",
		"DescribeInstanceTypes", "DescribeInstances", "DescribeNetworkInterfaces", "DescribeSubnets",
		"DescribeVpcPeeringConnections", "DescribeVpcs",
		"DetachNetworkInterface", "ModifyNetworkInterfaceAttribute", "UnassignIpv6Addresses",
		"UnassignPrivateIpAddresses"}
	if diff := cmp.Diff(want, table.Actions); diff != "" {
		t.Errorf("actions (-want +got):\n%s", diff)
	}
	if !slices.Contains(table.Paths, "/latest/meta-data/network/interfaces/macs/{new MAC}/local-ipv4s") {
		t.Errorf("paths of metadata: %v", table.Paths)
	}
}

// TestDifferences changes answers of the real side. The comparison must find the differences.
func TestDifferences(t *testing.T) {
	replace := func(old, new string) func(string, string) (string, int) {
		return func(_, body string) (string, int) { return strings.ReplaceAll(body, old, new), 0 }
	}
	for name, tt := range map[string]struct {
		change func(call, body string) (string, int)
		imds   bool
		want   compare.Row // without Step
		fails  bool
	}{
		"a field that the simulator lacks, and no program reads": {
			change: replace("<status>in-use</status>",
				"<status>in-use</status><denyAllIgwTraffic>true</denyAllIgwTraffic>"),
			want: compare.Row{Call: "DescribeNetworkInterfaces", Field: "networkInterfaceSet.item.denyAllIgwTraffic",
				Real: "true", Kind: true},
		},
		"a field that the suite reads has another name": {
			change: func(call, body string) (string, int) {
				if strings.Contains(call, "Action=DescribeInstanceTypes") {
					body = strings.ReplaceAll(body, "ipv4AddressesPerInterface", "ipv4Addresses")
				}
				return body, 0
			},
			want: compare.Row{Call: "DescribeInstanceTypes",
				Field: "instanceTypeSet.item.networkInfo.ipv4AddressesPerInterface", Sim: "4", Kind: true, Read: true},
			fails: true,
		},
		"another number": {
			change: replace("<maximumNetworkInterfaces>3<", "<maximumNetworkInterfaces>5<"),
			want: compare.Row{Call: "DescribeInstanceTypes",
				Field: "instanceTypeSet.item.networkInfo.maximumNetworkInterfaces", Real: "5", Sim: "3"},
		},
		"another text for people": {
			change: replace("in use.</Message>", "in use already</Message>"),
			want: compare.Row{Call: "DeleteNetworkInterface", Field: "Errors.Error.Message",
				Real: "Network interface '{the new ENI}' is currently in use already",
				Sim:  "Network interface '{the new ENI}' is currently in use."},
		},
		"another code": {
			change: replace("<Code>PrivateIpAddressLimitExceeded<", "<Code>TooManyAddresses<"),
			want: compare.Row{Call: "more addresses than the type allows", Field: "(meaning to the suite)",
				Real: "refused", Sim: "refused: ENI is full", Kind: true, Read: true},
			fails: true,
		},
		"a call that EC2 carries out, and the simulator refuses": {
			change: func(call, body string) (string, int) {
				if strings.Contains(call, "DetachNetworkInterface") &&
					strings.Contains(body, "<Code>OperationNotPermitted<") {
					return "<DetachNetworkInterfaceResponse><return>true</return></DetachNetworkInterfaceResponse>", 200
				}
				return body, 0
			},
			want: compare.Row{Call: "detach the boot ENI", Field: "(meaning to the suite)", Real: "done",
				Sim: "refused: EC2 refuses", Kind: true, Read: true},
			fails: true,
		},
		"metadata that the suite does not read has a key more": {
			change: replace(`"architecture"`, `"ramdiskId": null, "architecture"`), imds: true,
			want: compare.Row{Call: "/latest/dynamic/instance-identity/document", Field: "ramdiskId", Real: "(empty)",
				Kind: true},
		},
		"metadata that the suite reads has another form": {
			change: replace(`"us-east-1a"`, `"use1-az1"`), imds: true,
			want: compare.Row{Call: "/latest/dynamic/instance-identity/document", Field: "availabilityZone",
				Real: "use1-az1", Sim: "us-east-1a", Kind: true, Read: true},
			fails: true,
		},
	} {
		t.Run(name, func(t *testing.T) {
			real := place(t, "real", 1)
			if tt.imds {
				real.Metadata = bodyless{changed{real.Metadata, tt.change}}
			} else {
				real.EC2 = changed{real.EC2, tt.change}
			}
			table, err := run(t, real) // if the suite refuses an answer, the comparison ends with an error
			if err != nil && !tt.fails {
				t.Fatal(err)
			}
			at := slices.IndexFunc(table.Rows, func(r compare.Row) bool {
				return r.Call == tt.want.Call && r.Field == tt.want.Field
			})
			if at < 0 {
				t.Fatalf("it was not found: %+v", table.Rows)
			}
			got := table.Rows[at]
			got.Step = ""
			if diff := cmp.Diff(tt.want, got); diff != "" || got.Fails() != tt.fails {
				t.Errorf("(-want +got):\n%s\nfails: %v", diff, got.Fails())
			}
			if failures := table.Failures(); len(failures) > 0 != tt.fails {
				t.Errorf("failures: %+v", failures)
			}
		})
	}
}

// A bodyless client adds an empty body to requests that have no body.
type bodyless struct{ aws.HTTPClient }

func (b bodyless) Do(q *http.Request) (*http.Response, error) {
	if q.Body == nil {
		q.Body = http.NoBody
	}
	return b.HTTPClient.Do(q)
}
