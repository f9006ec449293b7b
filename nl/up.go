// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package nl

import "errors"

// Up is the state of a link that is up. If MTU is not 0, the link also has this MTU. Del does nothing: a link that was
// set up stays up.
type Up struct {
	Dev string
	MTU int
}

func (u Up) String() string {
	return command("ip link set").word(u.Dev).number("mtu", u.MTU).word("up").String()
}

// Add sets the link up, and sets the MTU if it is not 0.
func (u Up) Add(n *NS) error {
	if u.Check(n) == nil {
		return errSame
	}
	return n.setLink(u.Dev, u.MTU, "")
}

// Del does nothing.
func (u Up) Del(*NS) error { return nil }

// Check returns an error if the link is down or has another MTU.
func (u Up) Check(n *NS) error {
	l, err := n.LinkByName(u.Dev)
	switch {
	case err != nil:
		return err
	case !l.Up:
		return errors.New("the link is down")
	case u.MTU > 0 && l.MTU != u.MTU:
		return differs("mtu", l.MTU, u.MTU)
	}
	return nil
}
