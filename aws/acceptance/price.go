// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package main

import (
	"fmt"
	"time"
)

// Prices of us-east-1 in dollars, On-Demand and without tax, as the pages https://aws.amazon.com/ec2/pricing/on-demand,
// https://aws.amazon.com/vpc/pricing and https://aws.amazon.com/ebs/pricing had them in 2025. Other regions cost up to twice as much.
var perHour = map[string]float64{"t3.small": 0.0208, "t3.medium": 0.0416, "m5.large": 0.096, "c5.large": 0.085}

const (
	pricesOf          = "us-east-1 in 2025"
	publicAddress     = 0.005       // for each hour of each public IPv4 address
	volume            = 8 * 0.08    // for each month of 8 GB of gp3, which the image has
	month             = 730         // hours
	leastBilled       = time.Minute // of an instance
	instances         = 2           // that a run launches
	expectedDuration  = 15 * time.Minute
	instancesEndAfter = time.Hour // by themselves
)

// estimate returns what the instances of a type cost in a time, and whether the price of the type is known.
func estimate(kind string, d time.Duration) (dollars float64, known bool) {
	hourly, known := perHour[kind]
	d = max(d, leastBilled)
	return instances * d.Hours() * (hourly + publicAddress + volume/month), known
}

// cost is the estimate for people.
func cost(kind string, d time.Duration) string {
	dollars, known := estimate(kind, d)
	text := fmt.Sprintf("about $%.3f for %v, an estimate by the prices of %s", dollars, d.Round(time.Second), pricesOf)
	if !known {
		text += "; the price of " + kind + " is not known here, and is not in it"
	}
	return text
}
