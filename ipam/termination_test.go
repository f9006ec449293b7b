// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package ipam

import (
	"testing"
	"time"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/ipam/book"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/registry"
)

// TestTerminationLater: a process has lost EC2's answer to an attachment. A collection finds that out, and EC2 refuses
// to have the ENI end with the instance. The next collection tries that again.
func TestTerminationLater(t *testing.T) {
	for _, refusal := range []string{"UnsupportedOperation", "UnauthorizedOperation", "InternalError"} {
		t.Run(refusal, func(t *testing.T) {
			inBubble(t, "m5.large", func(w *world, _ *wires) {
				w.mustAcquire(0)
				eni := w.EC2.ENIs()[1]
				w.Operate("ModifyNetworkInterfaceAttribute", "NetworkInterfaceId", eni.ID,
					"Attachment.AttachmentId", eni.Attachment, "Attachment.DeleteOnTermination", "false")
				w.Edit(func(s *registry.State) {
					s.Intents["token"] = registry.Intent{Action: book.AttachAction, ENI: eni.ID, Since: time.Now()}
				})
				time.Sleep(time.Minute)
				w.EC2.ResetCalls()
				w.EC2.Fail("ModifyNetworkInterfaceAttribute", refusal, -1)
				w.collect()
				if w.EC2.Asked("ModifyNetworkInterfaceAttribute") == 0 {
					t.Fatal("no process has tried")
				}
				w.EC2.Fail("ModifyNetworkInterfaceAttribute", refusal, 0)
				time.Sleep(registry.MostRefusal) // for so long, the node does not ask again
				// it may ask EC2 first, and that takes a growth or a collection of its own
				for range 2 {
					time.Sleep(time.Minute)
					w.collect()
				}
				w.noneLeaked()
			})
		})
	}
}
