#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors
#
# aws-sdk-go-v2/service/ec2 v1.346.0: the waiters for instances and ENIs, when EC2 answers with more than one page.
#
# A good guess: a waiter for "all ENIs are available" follows NextToken, as the paginators of the package do, for instance with filters or
# MaxResults. It returns nil when all ENIs, on all pages, have the state. EC2 may send an empty page with a token. A waiter for existence
# then asks for the next page.
#
# What happens: a waiter looks only at the first page, in each try. So it returns nil after one call while the ENI of the second page is
# still pending, or while an instance is still running that should be terminated. If the first page is empty, the waiter waits until its
# time is over, and reports this, although the object is on the second page. The error does not mention the token. The script needs Go.
set -euo pipefail

dir=$(mktemp -d)
trap 'chmod -R u+w "$dir"; rm -rf "$dir"' EXIT
cd "$dir"
printf 'module example.com/wait\n\ngo 1.26\n\nrequire (\n%s\n%s\n%s\n)\n' 'github.com/aws/aws-sdk-go-v2 v1.48.0' \
	'github.com/aws/aws-sdk-go-v2/credentials v1.21.0' 'github.com/aws/aws-sdk-go-v2/service/ec2 v1.346.0' >go.mod
cat >main.go <<'EOF'
package main

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/credentials"
	"github.com/aws/aws-sdk-go-v2/service/ec2"
)

func main() {
	var pages [2]string // the state of what each page has, or none
	answer := func(w http.ResponseWriter, r *http.Request) {
		page, next := pages[0], "<nextToken>second</nextToken>"
		if r.FormValue("NextToken") != "" {
			page, next = pages[1], ""
		}
		action, item := r.FormValue("Action"), ""
		switch {
		case page == "":
		case action == "DescribeInstances":
			item = "<item><instancesSet><item><instanceState><name>" + page + "</name></instanceState></item></instancesSet></item>"
		default:
			item = "<item><status>" + page + "</status></item>"
		}
		set := map[string]string{"DescribeInstances": "reservationSet", "DescribeNetworkInterfaces": "networkInterfaceSet"}[action]
		fmt.Fprintf(w, "<%sResponse><%s>%s</%s>%s</%sResponse>", action, set, item, set, next, action)
	}
	server := httptest.NewServer(http.HandlerFunc(answer))
	c := ec2.New(ec2.Options{Region: "eu-west-1", BaseEndpoint: aws.String(server.URL),
		Credentials: credentials.NewStaticCredentialsProvider("key", "secret", "")})
	ctx, wait := context.Background(), 3*time.Second
	enis := ec2.NewNetworkInterfaceAvailableWaiter(c, func(o *ec2.NetworkInterfaceAvailableWaiterOptions) { o.MinDelay, o.MaxDelay = wait/9, wait/9 })
	gone := ec2.NewInstanceTerminatedWaiter(c, func(o *ec2.InstanceTerminatedWaiterOptions) { o.MinDelay, o.MaxDelay = wait/9, wait/9 })
	there := ec2.NewInstanceExistsWaiter(c, func(o *ec2.InstanceExistsWaiterOptions) { o.MinDelay, o.MaxDelay = wait/9, wait/9 })
	for _, pages = range [][2]string{{"available", "pending"}, {"", "available"}} {
		fmt.Printf("ENIs %q: available: %v\n", pages, enis.Wait(ctx, &ec2.DescribeNetworkInterfacesInput{MaxResults: aws.Int32(5)}, wait))
	}
	pages = [2]string{"terminated", "running"}
	fmt.Printf("instances %q: terminated: %v\n", pages, gone.Wait(ctx, &ec2.DescribeInstancesInput{MaxResults: aws.Int32(5)}, wait))
	pages = [2]string{"", "running"}
	fmt.Printf("instances %q: exist: %v\n", pages, there.Wait(ctx, &ec2.DescribeInstancesInput{MaxResults: aws.Int32(5)}, wait))
}
EOF
go mod tidy >/dev/null 2>&1 && go list -m github.com/aws/aws-sdk-go-v2/service/ec2
CGO_ENABLED=0 go build -trimpath -o probe . && ./probe | tee seen
diff - seen <<'EOF'
ENIs ["available" "pending"]: available: <nil>
ENIs ["" "available"]: available: exceeded max wait time for NetworkInterfaceAvailable waiter
instances ["terminated" "running"]: terminated: <nil>
instances ["" "running"]: exist: exceeded max wait time for InstanceExists waiter
EOF
