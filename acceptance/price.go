// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package main

import (
	"fmt"
	"time"
)

// A price is what an instance of a type costs in an hour, in dollars: On-Demand, with Linux, without tax. Types that
// spend CPU credits cost more when they are busy, at most this much.
type price struct{ hour, credits float64 }

// prices are about the prices of us-east-1, as the pages https://aws.amazon.com/ec2/pricing/on-demand,
// https://aws.amazon.com/vpc/pricing and https://aws.amazon.com/ebs/pricing had them in 2025. Other regions cost up to
// twice as much. Credits: two vCPUs at $0.05 an hour, for the 80 % above the baseline (EC2 user guide, "Unlimited mode
// for burstable performance instances").
var prices = map[string]price{"t3.small": {0.0208, 0.08}, "t3.medium": {0.0416, 0.08}, "m5.large": {0.096, 0},
	"c5.large": {0.085, 0}}

const (
	pricesOf          = "us-east-1 in 2025"
	publicAddress     = 0.005       // for each hour of each public IPv4 address
	gigabyte          = 0.08        // for each month of a GB of gp3
	month             = 730         // hours
	leastBilled       = time.Minute // of an instance
	instances         = 2           // that a run launches
	expectedDuration  = 15 * time.Minute
	instancesEndAfter = time.Hour // by themselves
)

// estimate returns what the instances of a type with volumes of this size cost in a time.
func estimate(p price, gigabytes int, d time.Duration) (dollars float64) {
	return instances * max(d, leastBilled).Hours() * (p.hour + publicAddress + float64(gigabytes)*gigabyte/month)
}

// cost is the estimate for people.
func (p plan) cost(d time.Duration) string {
	text := fmt.Sprintf("about $%.3f for %v, an estimate by the prices of %s",
		estimate(prices[p.kind], p.gigabytes(), d), d.Round(time.Second), pricesOf)
	if _, known := prices[p.kind]; !known {
		text += "; without the price of " + p.kind + ", which is not known here"
	}
	return text
}

// mostCost is what a run costs at most: if neither a program nor a person deletes the instances, and they are busy
// until they end by themselves.
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
