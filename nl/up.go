// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package nl

import "errors"

// An Up brings a link up, and sets the link's MTU unless MTU is 0. Del does nothing, so the link stays up.
type Up struct {
	Dev string
	MTU int
}

func (u Up) String() string {
	return command("ip link set").word(u.Dev).number("mtu", u.MTU).word("up").String()
}

func (u Up) Add(n *NS) error {
	if u.Check(n) == nil {
		return errSame
	}
	return n.setLink(u.Dev, u.MTU, "")
}

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
		return mismatchError("mtu", l.MTU, u.MTU)
	}
	return nil
}
