// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package main

import (
	"fmt"
	"time"
)

// A price is the price of an instance type per hour, in dollars: On-Demand, with Linux, without tax. A busy instance
// costs more if its type has CPU credits. The field credits is the maximum of this additional cost per hour.
type price struct{ hour, credits float64 }

// prices are approximate prices of us-east-1. The sources are the pages https://aws.amazon.com/ec2/pricing/on-demand,
// https://aws.amazon.com/vpc/pricing and https://aws.amazon.com/ebs/pricing in 2025. Other regions cost up to twice as
// much. If an instance uses more than the baseline of its CPU, the additional use costs $0.05 per vCPU and hour. The
// baseline of t3.small and t3.medium is 20 % of each vCPU. So in an hour at full load, their two vCPUs use 1.6 vCPU
// hours above the baseline, which cost $0.08 (EC2 user guide, "Unlimited mode for burstable performance instances").
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

// estimate returns the cost of a run whose instances run for this duration. The parameter gigabytes is the size of all
// volumes of one instance.
func estimate(p price, gigabytes int, d time.Duration) (dollars float64) {
	hour := p.hour + publicAddressPrice + float64(gigabytes)*gigabytePrice/hoursPerMonth
	return instances * max(d, leastBilled).Hours() * hour
}

// cost returns a text with the estimated cost of a run whose instances run for this duration.
func (p plan) cost(d time.Duration) string {
	text := fmt.Sprintf("about $%.3f for %v, an estimate by the prices of %s",
		estimate(prices[p.kind], p.gigabytes(), d), d.Round(time.Second), pricesOf)
	if _, known := prices[p.kind]; !known {
		text += "; without the price of " + p.kind + ", which is not known here"
	}
	return text
}

// mostCost returns a text with the maximum cost of a run. This is the cost if the instances are busy all the time, and
// run until they terminate themselves.
func (p plan) mostCost() string {
	busy, known := prices[p.kind]
	if !known {
		return fmt.Sprintf("at most %d hours of %s, whose price is not known here", instances, p.kind)
	}
	busy.hour += busy.credits
	return fmt.Sprintf("at most about $%.2f, if the instances are busy until they end by themselves; other regions "+
		"cost up to twice as much",
		estimate(busy, p.gigabytes(), instancesEndAfter))
}
