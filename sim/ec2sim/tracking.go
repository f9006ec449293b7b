// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package ec2sim

import "cmp"

// A Tracking has timeouts in seconds. When a connection has been idle for its timeout, the security groups of the ENI
// no longer track the connection. If a timeout is 0, the default of the instance type applies (Guide: "Connection
// tracking timeouts").
type Tracking struct {
	TCPEstablished int
	UDPStream      int
	UDP            int
}

// defaultTracking has the defaults of all instance types before Nitro v6 (API: ConnectionTrackingSpecificationRequest).
var defaultTracking = Tracking{TCPEstablished: 432000, UDPStream: 180, UDP: 30}

// withNitro6 returns the type with the short default TCP timeout of Nitro v6 (API:
// ConnectionTrackingSpecificationRequest).
func (t InstanceType) withNitro6() InstanceType {
	t.TCPEstablished = 350
	return t
}

// trackingRequest has the settings of a request (API: ConnectionTrackingSpecificationRequest).
type trackingRequest struct {
	TCPEstablished *int `ec2:"TcpEstablishedTimeout"`
	UDPStream      *int `ec2:"UdpStreamTimeout"`
	UDP            *int `ec2:"UdpTimeout"`
}

// applyTo returns the settings t with the changes that the request makes. The API documents the range of each setting,
// but no error code for a value outside the range. The simulator's code, InvalidParameterValue, is a guess.
func (in *trackingRequest) applyTo(t Tracking) (Tracking, error) {
	if in == nil {
		return t, nil
	}
	set := func(name string, into, n *int, least, most int) error {
		if n == nil {
			return nil
		}
		if *n < least || *n > most {
			return invalidValue(*n, name, "The timeout is out of its range.")
		}
		*into = *n
		return nil
	}
	return t, cmp.Or(
		set("TcpEstablishedTimeout", &t.TCPEstablished, in.TCPEstablished, 60, 432000),
		set("UdpStreamTimeout", &t.UDPStream, in.UDPStream, 60, 180),
		set("UdpTimeout", &t.UDP, in.UDP, 30, 60))
}

// trackingItem is a Tracking on the wire (API: ConnectionTrackingConfiguration).
type trackingItem struct {
	TCPEstablished int `xml:"tcpEstablishedTimeout,omitempty"`
	UDPStream      int `xml:"udpStreamTimeout,omitempty"`
	UDP            int `xml:"udpTimeout,omitempty"`
}

func (t Tracking) item() *trackingItem {
	if t == (Tracking{}) {
		return nil
	}
	return new(trackingItem(t))
}

// defaultTrackingItem has the defaults of an instance type on the wire (API: DefaultConnectionTrackingConfiguration).
type defaultTrackingItem struct {
	TCPEstablished int `xml:"defaultTcpEstablishedTimeout"`
	UDPStream      int `xml:"defaultUdpStreamTimeout"`
	UDP            int `xml:"defaultUdpTimeout"`
}

func (t InstanceType) defaultTracking() defaultTrackingItem {
	d := defaultTracking
	d.TCPEstablished = cmp.Or(t.TCPEstablished, d.TCPEstablished)
	return defaultTrackingItem(d)
}
