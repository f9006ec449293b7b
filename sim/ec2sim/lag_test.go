// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package ec2sim

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
)

// lagged returns a Config with which answers can be up to ten seconds old.
func lagged(back int, seed uint64) Config {
	c := world
	c.Lag = Lag{Most: 10 * time.Second, Back: back, Seed: seed}
	return c
}

// history assigns an address to eni-1 every second for nine seconds, and describes eni-1 five times a second for twenty
// seconds. For each answer, it returns how many addresses the answer has shown, and how many the ENI had.
func history(t *testing.T, c Config) (shown, truth []int) {
	sim, _ := start(t, c)
	for n := range 100 {
		if n%5 == 0 && n < 45 {
			must(t, sim, "AssignPrivateIpAddresses NetworkInterfaceId=eni-1 SecondaryPrivateIpAddressCount=1")
		}
		answer := must(t, sim, "DescribeNetworkInterfaces")
		shown, truth = append(shown, len(answer.all("primary"))), append(truth, len(sim.ENIs()[0].Addrs))
		time.Sleep(200 * time.Millisecond)
	}
	return shown, truth
}

// TestLag: no answer shows a state that is older than the lag. Some answers show an old state. Exactly as many answers
// as the Lag allows show fewer addresses than an earlier answer.
func TestLag(t *testing.T) {
	for _, back := range []int{0, 1, 3} {
		for seed := range uint64(3) {
			t.Run(fmt.Sprintf("back %d seed %d", back, seed), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					shown, truth := history(t, lagged(back, seed))
					behind, backwards, most := 0, 0, 0
					for n, got := range shown {
						if oldest := truth[max(0, n-51)]; got > truth[n] || got < oldest && n > 51 {
							t.Errorf("describe %d: %d addresses; there are %d, and were %d", n, got, truth[n], oldest)
						}
						if got < truth[n] {
							behind++
						}
						if got < most {
							backwards++
						}
						most = max(most, got)
					}
					if behind == 0 || backwards != back {
						t.Errorf("%d times behind, %d times backwards (want %d): %v", behind, backwards, back, shown)
					}
				})
			})
		}
	}
}

// TestLagRepeats: the same seed gives the same history.
func TestLagRepeats(t *testing.T) {
	var runs [][]int
	for _, seed := range []uint64{7, 7, 8} {
		synctest.Test(t, func(t *testing.T) {
			shown, _ := history(t, lagged(1, seed))
			runs = append(runs, shown)
		})
	}
	if diff := cmp.Diff(runs[0], runs[1]); diff != "" {
		t.Errorf("the same seed (-first +second):\n%s", diff)
	}
	if slices.Equal(runs[0], runs[2]) {
		t.Error("another seed, and the same history")
	}
}

// TestLagOfAnENI: for some time, DescribeNetworkInterfaces can omit a new ENI, AttachNetworkInterface can fail to find
// the ENI, and DescribeSubnets can show too many free addresses. DescribeNetworkInterfaces can still show a deleted ENI
// for some time.
func TestLagOfAnENI(t *testing.T) {
	missed, notFound, remained, counted := 0, 0, 0, 0
	for seed := range uint64(20) {
		synctest.Test(t, func(t *testing.T) {
			sim, _ := start(t, lagged(0, seed))
			shows := func() bool {
				return strings.Contains(fmt.Sprint(must(t, sim, "DescribeNetworkInterfaces")), long("eni-2"))
			}
			must(t, sim, create)
			if !shows() {
				missed++
			}
			if got := must(t, sim, "DescribeSubnets SubnetId.1=subnet-b").one(t,
				"availableIpAddressCount"); got == "251" {
				counted++
			}
			const attach = "AttachNetworkInterface InstanceId=i-1 NetworkInterfaceId=eni-2 DeviceIndex=1"
			switch got, _ := refused(t, sim, attach); got {
			case "400 InvalidNetworkInterfaceID.NotFound":
				notFound++
				time.Sleep(10 * time.Second)
				must(t, sim, attach)
			case "200":
			default:
				t.Error(got)
			}
			time.Sleep(10 * time.Second)
			if !shows() {
				t.Error("not shown after the lag")
			}
			must(t, sim, "DetachNetworkInterface AttachmentId=eni-attach-2")
			must(t, sim, "DeleteNetworkInterface NetworkInterfaceId=eni-2")
			time.Sleep(time.Second)
			if shows() {
				remained++
			}
			time.Sleep(10 * time.Second)
			if shows() {
				t.Error("still shown after the lag")
			}
		})
	}
	if missed == 0 || notFound == 0 || remained == 0 || counted == 0 {
		t.Errorf("of 20 ENIs: %d missed, %d not found, %d shown after they were gone, %d not counted", missed, notFound,
			remained, counted)
	}
}

// TestLaunchIsKnown: as soon as RunInstance returns, all actions find the ENI of the instance.
func TestLaunchIsKnown(t *testing.T) {
	for seed := range uint64(10) {
		sim, _ := start(t, lagged(1, seed))
		run(t, sim, RunInstance{Type: "m5.large", Subnet: "subnet-b"})
		if got := ids("DescribeNetworkInterfaces", must(t, sim, "DescribeNetworkInterfaces")); len(got) != 2 {
			t.Errorf("seed %d: %v", seed, got)
		}
		must(t, sim, "AssignPrivateIpAddresses NetworkInterfaceId=eni-2 SecondaryPrivateIpAddressCount=1")
	}
}
