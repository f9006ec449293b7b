// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package ec2sim_test

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/sim/ec2sim"
)

// Two calls ask for two more addresses for an instance's ENI. EC2 throttles the first call.
func Example() {
	sim, err := ec2sim.New(ec2sim.World(`
		vpc-1    10.0.0.0/16
		subnet-a 10.0.0.0/24`))
	if err != nil {
		panic(err)
	}
	node, err := sim.RunInstance(ec2sim.RunInstance{Type: "m5.large", Subnet: "subnet-a"})
	if err != nil {
		panic(err)
	}
	sim.OnChange(func(c ec2sim.Change) { fmt.Println(c.Kind, c.ENI.Addrs) })
	sim.Fail("AssignPrivateIpAddresses", "RequestLimitExceeded", 1)

	ec2 := httptest.NewServer(sim) // AWS_ENDPOINT_URL_EC2=ec2.URL
	defer ec2.Close()
	for range 2 {
		answer, err := http.PostForm(ec2.URL, url.Values{
			"Action":                         {"AssignPrivateIpAddresses"},
			"NetworkInterfaceId":             {node.ENIs()[0].ID},
			"SecondaryPrivateIpAddressCount": {"2"},
		})
		if err != nil {
			panic(err)
		}
		answer.Body.Close()
		fmt.Println(answer.Status)
	}
	for _, call := range sim.Calls() {
		fmt.Println(strings.Replace(call.String(), " ", "\n  ", 1))
	}
	// Output:
	// 503 Service Unavailable
	// addressed [10.0.0.4 10.0.0.5 10.0.0.6]
	// 200 OK
	// AssignPrivateIpAddresses
	//   NetworkInterfaceId=eni-00000000000000001 SecondaryPrivateIpAddressCount=2: RequestLimitExceeded
	// AssignPrivateIpAddresses
	//   NetworkInterfaceId=eni-00000000000000001 SecondaryPrivateIpAddressCount=2
}

// The metadata service of an instance forgets an ENI after a restart, and finds it again.
func ExampleInstance_Reboot() {
	sim, err := ec2sim.New(ec2sim.World(`
		vpc-1    10.0.0.0/16
		subnet-a 10.0.0.0/24`))
	if err != nil {
		panic(err)
	}
	node, err := sim.RunInstance(ec2sim.RunInstance{Type: "m5.large", Subnet: "subnet-a"})
	if err != nil {
		panic(err)
	}
	imds := httptest.NewServer(node.Metadata()) // AWS_EC2_METADATA_SERVICE_ENDPOINT=imds.URL
	defer imds.Close()
	macs := func() string {
		r, _ := http.NewRequest("PUT", imds.URL+"/latest/api/token", nil)
		r.Header.Set("X-aws-ec2-metadata-token-ttl-seconds", "60")
		token := read(r)
		r, _ = http.NewRequest("GET", imds.URL+"/latest/meta-data/network/interfaces/macs/", nil)
		r.Header.Set("X-aws-ec2-metadata-token", token)
		return read(r)
	}
	fmt.Println(macs())
	remember := node.Reboot(ec2sim.ForgetENI(node.ENIs()[0].ID))
	fmt.Println(macs())
	remember()
	fmt.Println(macs())
	// Output:
	// 06:00:00:00:00:01/
	// 404 Not Found
	// 06:00:00:00:00:01/
}

func read(r *http.Request) string {
	answer, err := http.DefaultClient.Do(r)
	if err != nil {
		panic(err)
	}
	defer answer.Body.Close()
	text, err := io.ReadAll(answer.Body)
	if err != nil {
		panic(err)
	}
	if answer.StatusCode != http.StatusOK {
		return answer.Status
	}
	return string(text)
}
