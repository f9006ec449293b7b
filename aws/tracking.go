// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package aws

import (
	"errors"
	"fmt"

	"github.com/aws/aws-sdk-go-v2/service/ec2/types"
)

// A Tracking has timeouts in seconds for the connections of an ENI. If a connection is idle for longer, the ENI's
// security groups no longer track it, and EC2 drops its packets. A timeout of 0 means the default of the instance type
// (EC2 user guide, "Connection tracking timeouts").
type Tracking struct {
	TCPEstablished int // established TCP connections
	UDPStream      int // UDP flows with at least two pairs of request and answer
	UDP            int // other UDP flows
}

// sdkRequest converts t to the SDK's type. It returns nil if all timeouts are 0.
func (t Tracking) sdkRequest() *types.ConnectionTrackingSpecificationRequest {
	if t == (Tracking{}) {
		return nil
	}
	seconds := func(n int) *int32 {
		if n == 0 {
			return nil
		}
		return new(int32(n))
	}
	return &types.ConnectionTrackingSpecificationRequest{
		TcpEstablishedTimeout: seconds(t.TCPEstablished), UdpStreamTimeout: seconds(t.UDPStream),
		UdpTimeout: seconds(t.UDP)}
}

// parseTracking converts the timeouts of an ENI from the SDK's type. EC2 omits timeouts that are not set.
func parseTracking(c *types.ConnectionTrackingConfiguration) (t Tracking, err error) {
	if c == nil {
		return t, nil
	}
	var errs [3]error
	t.TCPEstablished, errs[0] = parseTimeout("TCP connections", c.TcpEstablishedTimeout)
	t.UDPStream, errs[1] = parseTimeout("UDP streams", c.UdpStreamTimeout)
	t.UDP, errs[2] = parseTimeout("UDP flows", c.UdpTimeout)
	return t, errors.Join(errs[:]...)
}

// parseTimeout validates a timeout. If the timeout is missing, parseTimeout returns 0.
func parseTimeout(of string, n *int32) (int, error) {
	if n == nil {
		return 0, nil
	}
	return parseNumber(fmt.Sprintf("the timeout of idle %s", of), n, 0, maxTimeout)
}
