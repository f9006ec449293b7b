// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package aws_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/aws"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/sim/ec2sim"
)

const (
	aMAC  = "<macAddress>06:00:00:00:00:02</macAddress>"
	anENI = "<networkInterface><networkInterfaceId>eni-1</networkInterfaceId><subnetId>subnet-a</subnetId>" + aMAC +
		"<privateIpAddressesSet><item><privateIpAddress>10.0.0.9</privateIpAddress></item>" +
		"</privateIpAddressesSet></networkInterface>"
	aType = "<instanceTypeSet><item><instanceType>m5.large</instanceType><networkInfo>" +
		"<maximumNetworkInterfaces>3</maximumNetworkInterfaces>" +
		"<ipv4AddressesPerInterface>10</ipv4AddressesPerInterface>" +
		"<networkCards><item><networkCardIndex>0</networkCardIndex>" +
		"<maximumNetworkInterfaces>3</maximumNetworkInterfaces></item>" +
		"</networkCards></networkInfo></item></instanceTypeSet>"
	aSubnet = "<subnetSet><item><subnetId>subnet-a</subnetId><vpcId>vpc-1</vpcId>" +
		"<availabilityZone>us-east-1a</availabilityZone>" +
		"<cidrBlock>10.0.0.0/24</cidrBlock><availableIpAddressCount>5</availableIpAddressCount></item></subnetSet>"
	aVPC = "<vpcSet><item><vpcId>vpc-1</vpcId><cidrBlock>10.0.0.0/16</cidrBlock></item></vpcSet>"
)

// asks are calls, each with a valid answer.
var asks = map[string]struct {
	answer string
	call   func(context.Context, *aws.Client) error
}{
	"AssignPrivateIpAddresses": {assigned, func(ctx context.Context, c *aws.Client) error {
		return drop(c.Assign(ctx, "eni-1", 1))
	}},
	"AssignIpv6Addresses": {"<assignedIpv6PrefixSet><item>2001:db8:0:0:1::/80</item></assignedIpv6PrefixSet>",
		func(ctx context.Context, c *aws.Client) error { return drop(c.AssignIPv6Prefixes(ctx, "eni-1", 1)) }},
	"CreateNetworkInterface": {anENI, func(ctx context.Context, c *aws.Client) error {
		return drop(c.CreateENI(ctx, aws.ENISpec{Subnet: "subnet-a"}))
	}},
	"DescribeNetworkInterfaces": {"<networkInterfaceSet>" + strings.NewReplacer("<networkInterface>", "<item>",
		"</networkInterface>", "</item>").Replace(anENI) + "</networkInterfaceSet>",
		func(ctx context.Context, c *aws.Client) error { return drop(c.DescribeENIs(ctx, aws.ByID("eni-1"))) }},
	"DescribeSubnets": {aSubnet, func(ctx context.Context, c *aws.Client) error {
		return drop(c.Subnets(ctx, "vpc-1", "us-east-1a"))
	}},
	"DescribeVpcs": {aVPC, func(ctx context.Context, c *aws.Client) error {
		return drop(c.VPC(ctx, "vpc-1"))
	}},
	"DescribeInstanceTypes": {aType, func(ctx context.Context, c *aws.Client) error {
		return drop(c.Limits(ctx, "m5.large"))
	}},
	"AttachNetworkInterface": {"<attachmentId>eni-attach-1</attachmentId>",
		func(ctx context.Context, c *aws.Client) error { return drop(c.AttachENI(ctx, "eni-1", "i-1", 0, 1)) }},
	"DeleteNetworkInterface": {"<return>true</return>", func(ctx context.Context, c *aws.Client) error {
		return c.DeleteENI(ctx, "eni-1")
	}},
}

// TestInvalid has a case for each rule of validation. Each case changes one thing in a valid answer.
func TestInvalid(t *testing.T) {
	const (
		assign, assign6  = "AssignPrivateIpAddresses", "AssignIpv6Addresses"
		create, describe = "CreateNetworkInterface", "DescribeNetworkInterfaces"
		types            = "DescribeInstanceTypes"
	)
	for _, c := range []struct{ action, there, place, want string }{
		{assign, "10.0.0.9", "", "not an IPv4 address"},
		{assign, "10.0.0.9", "10.0.0.0.9", "not an IPv4 address"},
		{assign, "10.0.0.9", "0.0.0.0", "not an IPv4 address"},
		{assign, "10.0.0.9", "127.0.0.1", "not an IPv4 address"},
		{assign, "10.0.0.9", "169.254.169.254", "not an IPv4 address"},
		{assign, "10.0.0.9", "224.0.0.1", "not an IPv4 address"},
		{assign, "10.0.0.9", "::ffff:10.0.0.9", "not an IPv4 address"},
		{assign, "10.0.0.9", "2001:db8::9", "not an IPv4 address"},
		{assign, "</item>", "</item><item><privateIpAddress>10.0.0.10</privateIpAddress></item>",
			"number of addresses: asked for 1, but EC2 answers with 2"},
		{assign, "<item><privateIpAddress>10.0.0.9</privateIpAddress></item>", "",
			"number of addresses: asked for 1, but EC2 answers with 0"},
		{assign, "eni-1", "eni-2", "asked about eni-1"},
		{assign6, "/80", "/79", "not a delegated prefix"},
		{assign6, "/80", "/0", "not an IPv6 CIDR"},
		{assign6, "2001:db8:0:0:1::/80", "2001:db8:0:0:1::1/80", "not a delegated prefix"},
		{assign6, "2001:db8:0:0:1::/80", "10.0.0.16/28", "not an IPv6 CIDR"},
		{create, "eni-1", "", "not an ID"},
		{create, "eni-1", "i-1", "not an ID"},
		{create, "subnet-a", "subnet-b", "asked about subnet-a"},
		{create, aMAC, "", "not the MAC"},
		{create, "06:00:00:00:00:02", "00:00:00:00:00:00", "not the MAC"},
		{create, "06:00:00:00:00:02", "01:00:5e:00:00:01", "not the MAC"},
		{create, "06:00:00:00:00:02", "06:00:00:00:00:00:00:02", "not the MAC"},
		{create, "<item><privateIpAddress>10.0.0.9</privateIpAddress></item>", "", "has no address"},
		{create, "</item>", "</item><item><privateIpAddress>10.0.0.9</privateIpAddress></item>", "twice"},
		{create, anENI, "", "no network interface"},
		{describe, "eni-1", "eni-2", "asked for eni-1"},
		{describe, aMAC, aMAC + "<attachment><deviceIndex>-1</deviceIndex></attachment>", "device index"},
		{describe, aMAC, aMAC +
			"<attachment><deviceIndex>1</deviceIndex><networkCardIndex>999999</networkCardIndex></attachment>",
			"network card"},
		{describe, aMAC, aMAC + "<ipv4PrefixSet><item><ipv4Prefix>10.0.0.0/8</ipv4Prefix></item></ipv4PrefixSet>",
			"not a delegated prefix"},
		{describe, "<networkInterfaceSet>", "<nextToken>again</nextToken><networkInterfaceSet>",
			"has the same token for the next page"},
		{"DescribeSubnets", "subnet-a", "", "not an ID"},
		{"DescribeSubnets", "vpc-1", "vpc-2", "asked about vpc-1"},
		{"DescribeSubnets", "us-east-1a", "us-east-1b", "asked about us-east-1a"},
		{"DescribeSubnets", "10.0.0.0/24", "0.0.0.0/0", "not an IPv4 CIDR"},
		{"DescribeSubnets", ">5<", ">-5<", "free addresses"},
		{"DescribeVpcs", "10.0.0.0/16", "", "not an IPv4 CIDR"},
		{"DescribeVpcs", "10.0.0.0/16", "0.0.0.0/1", "not an IPv4 CIDR"},
		{"DescribeVpcs", "vpc-1", "vpc-2", "asked about vpc-1"},
		{"DescribeVpcs", aVPC, "", "not found"},
		{types, "m5.large", "m5.huge", "asked about m5.large"},
		{types, "<ipv4AddressesPerInterface>10", "<ipv4AddressesPerInterface>0", "IPv4 addresses"},
		{types, "<ipv4AddressesPerInterface>10</ipv4AddressesPerInterface>", "", "missing"},
		{types, "<ipv4AddressesPerInterface>10", "<ipv4AddressesPerInterface>2147483647", "IPv4 addresses"},
		{types, "<networkCardIndex>0", "<networkCardIndex>2147483647", "index of a network card"},
		{types, "<networkCardIndex>0</networkCardIndex>", "", "missing"},
		{"AttachNetworkInterface", "eni-attach-1", "", "no attachment ID"},
		{"DeleteNetworkInterface", "true", "false", "has not carried out"},
	} {
		inBubble(t, c.action+" "+c.want+" "+c.place, func(t *testing.T) {
			ask := asks[c.action]
			if !strings.Contains(ask.answer, c.there) {
				t.Fatalf("%q is not in the answer", c.there)
			}
			if err := ask.call(t.Context(), answered(c.action, ask.answer)); err != nil {
				t.Errorf("the answer as it is: %v", err)
			}
			err := ask.call(t.Context(), answered(c.action, strings.Replace(ask.answer, c.there, c.place, 1)))
			if e, ok := errors.AsType[*aws.Error](err); !ok || e.Action != c.action || e.Code != "" ||
				!strings.Contains(err.Error(), c.want) {
				t.Errorf("got %v, want %q", err, c.want)
			}
		})
	}
}

// answered returns a client that always gets this answer.
func answered(action, body string) *aws.Client {
	h := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { answer(w, action, body) })
	return aws.New(aws.Options{EC2URL: "http://ec2.test", HTTP: ec2sim.Direct{Handler: h}, Attempts: 1})
}

// TestInvalidAnswers: a proxy answers with status 200 instead of EC2. The Client must return an error. The SDK alone
// would take the answer for a success or for an empty list.
func TestInvalidAnswers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for name, body := range map[string]string{
			"nothing":              "",
			"a page":               "<html><body>Please log in.</body></html>",
			"text":                 "OK",
			"another answer":       "<DescribeVolumesResponse></DescribeVolumesResponse>",
			"two answers":          "<%[1]sResponse></%[1]sResponse><%[1]sResponse></%[1]sResponse>",
			"half an answer":       "<%[1]sResponse><requestId>",
			"an answer and a half": "<%[1]sResponse></%[1]sResponse><html>",
		} {
			for action, ask := range asks {
				c := aws.New(aws.Options{EC2URL: "http://ec2.test", Attempts: 1,
					HTTP: ec2sim.Direct{Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
						fmt.Fprint(w, strings.ReplaceAll(body, "%[1]s", action))
					})}})
				if err := ask.call(t.Context(), c); !invalidAnswer(err, action) {
					t.Errorf("%s: %s: %v (%s)", name, action, err, aws.Hint(err))
				}
			}
		}
		const action = "DeleteNetworkInterface"
		c := aws.New(aws.Options{EC2URL: "http://ec2.test", Attempts: 1, HTTP: flood{}})
		if err := asks[action].call(t.Context(), c); !invalidAnswer(err, action) {
			t.Errorf("an answer without an end: %v (%s)", err, aws.Hint(err))
		}
	})
}

// invalidAnswer reports whether the error says that the answer did not come from EC2.
func invalidAnswer(err error, action string) bool {
	return errors.Is(err, aws.ErrTransient) && strings.HasPrefix(err.Error(), action+": ") &&
		strings.Contains(aws.Hint(err), "instead of EC2") && len(err.Error()) <= 1000
}

// A flood is an answer without an end.
type flood struct{}

func (f flood) Do(r *http.Request) (*http.Response, error) {
	return &http.Response{StatusCode: http.StatusOK, Body: io.NopCloser(f), Request: r}, nil
}

func (flood) Read(b []byte) (int, error) { return len(b), nil }

// TestCards: if a card takes no ENIs with addresses, Limits counts zero ENIs for this card, and the other cards keep
// their indexes.
func TestCards(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		info := func(cards string) string {
			return strings.Replace(aType,
				"<item><networkCardIndex>0</networkCardIndex>"+
					"<maximumNetworkInterfaces>3</maximumNetworkInterfaces></item>", cards, 1)
		}
		card := func(index, enis int, kinds ...string) string {
			text := fmt.Sprintf(
				"<item><networkCardIndex>%d</networkCardIndex>"+
					"<maximumNetworkInterfaces>%d</maximumNetworkInterfaces><interfaceTypeSet>", index, enis)
			for _, k := range kinds {
				text += "<item>" + k + "</item>"
			}
			return text + "</interfaceTypeSet></item>"
		}
		for _, c := range []struct {
			name, cards string
			want        []int
			pods        int
		}{
			{"none", "", []int{3}, 2},
			{"two", card(0, 2) + card(1, 2), []int{2, 2}, 2},
			{"in another order", card(2, 1) + card(0, 3), []int{3, 0, 1}, 2},
			{"kinds", card(0, 2, "interface", "efa") + card(1, 1, "efa-only") + card(2, 2, "interface"),
				[]int{2, 0, 2}, 2},
		} {
			l := must(answered("DescribeInstanceTypes", info(c.cards)).Limits(t.Context(), "m5.large"))(t)
			equal(t, c.name, l.Cards, c.want)
			if l.PodENIs() != c.pods {
				t.Errorf("%s: %d ENIs for pods, want %d", c.name, l.PodENIs(), c.pods)
			}
		}
	})
}
