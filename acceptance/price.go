// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package main

import (
	"fmt"
	"time"
)

// A price is the price of an instance type per hour, in dollars: On-Demand, with Linux, without tax. credits is the
// maximum additional cost of a busy instance per hour, if its type has CPU credits.
type price struct{ hour, credits float64 }

// prices are approximate prices of us-east-1, from https://aws.amazon.com/ec2/pricing/on-demand,
// https://aws.amazon.com/vpc/pricing and https://aws.amazon.com/ebs/pricing in 2025. Other regions cost up to twice as
// much. Use of the CPU above the baseline costs $0.05 per vCPU and hour. t3.small and t3.medium have two vCPUs, each
// with a baseline of 20 %. So at full load, they use 1.6 vCPUs above the baseline (EC2 user guide, "Unlimited mode for
// burstable performance instances").
var prices = map[string]price{"t3.small": {0.0208, 0.08}, "t3.medium": {0.0416, 0.08}, "m5.large": {0.096, 0},
	"c5.large": {0.085, 0}}

const (
	pricesOf           = "us-east-1 in 2025"
	publicAddressPrice = 0.005       // per hour and public IPv4 address
	gigabytePrice      = 0.08        // per month and GB of a gp3 volume
	hoursPerMonth      = 730         // hours
	leastBilled        = time.Minute // EC2 bills each instance for at least this time
	instances          = 2           // the number of instances that a run launches
	expectedDuration   = 15 * time.Minute
	instancesEndAfter  = time.Hour // the instances end themselves after this time
)

// estimate returns the cost in dollars of a run whose instances run for this duration. gigabytes is the size of all
// volumes of one instance.
func estimate(p price, gigabytes int, d time.Duration) (dollars float64) {
	hour := p.hour + publicAddressPrice + float64(gigabytes)*gigabytePrice/hoursPerMonth
	return instances * max(d, leastBilled).Hours() * hour
}

func (p plan) cost(d time.Duration) string {
	text := fmt.Sprintf("about $%.3f for %v, an estimate by the prices of %s",
		estimate(prices[p.kind], p.gigabytes(), d), d.Round(time.Second), pricesOf)
	if _, known := prices[p.kind]; !known {
		text += "; without the price of " + p.kind + ", which is not known here"
	}
	return text
}

// mostCost returns a text with the maximum cost of a run: the instances are busy all the time, until they terminate
// themselves.
func (p plan) mostCost() string {
	busy, known := prices[p.kind]
	if !known {
		return fmt.Sprintf("at most %v for %d instances of %s, whose price is not known here", instancesEndAfter,
			instances, p.kind)
	}
	busy.hour += busy.credits
	return fmt.Sprintf("at most about $%.2f, if the instances are busy until they end by themselves; other regions "+
		"cost up to twice as much",
		estimate(busy, p.gigabytes(), instancesEndAfter))
}
