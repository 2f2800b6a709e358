"""`unilaunch doctor`: would a job start on these hosts?"""
