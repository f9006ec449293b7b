// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package aws

import (
	"errors"
	"fmt"

	"github.com/aws/aws-sdk-go-v2/service/ec2/types"
)

// A Tracking holds the timeouts, in seconds, of idle connections that the security groups of
// an ENI track. EC2 drops packets of a connection that is no longer tracked. 0 means that the timeout is not set. Then
// the default of the instance type counts (EC2 user guide, "Connection tracking timeouts").
type Tracking struct {
	TCPEstablished int // idle TCP connections that are established
	UDPStream      int // UDP flows with more than one request and answer
	UDP            int // other UDP flows
}

// request returns the settings for EC2; nil if nothing is set.
func (t Tracking) request() *types.ConnectionTrackingSpecificationRequest {
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

// parseTracking parses the settings of an ENI. EC2 omits a timeout that is not set.
func parseTracking(c *types.ConnectionTrackingConfiguration) (t Tracking, err error) {
	if c == nil {
		return t, nil
	}
	var errs [3]error
	t.TCPEstablished, errs[0] = timeout("TCP connections", c.TcpEstablishedTimeout)
	t.UDPStream, errs[1] = timeout("UDP streams", c.UdpStreamTimeout)
	t.UDP, errs[2] = timeout("UDP flows", c.UdpTimeout)
	return t, errors.Join(errs[:]...)
}

// timeout parses a timeout. For a missing timeout, it returns 0.
func timeout(of string, n *int32) (int, error) {
	if n == nil {
		return 0, nil
	}
	return number(fmt.Sprintf("the timeout of idle %s", of), n, 0, maxTimeout)
}
